/** What the callbacks of a run or of a task instance printed. */
import { ok } from '../api/client'
import type { LogLines } from '../api/types'
import type { Topic } from '../live/changes'
import { useLive } from '../live/resource'
import { Empty, Skeleton } from '../parts/basic'
import { t } from '../strings'

export function Callbacks({ of, topic, read }: { of: string; topic: Topic; read: () => Promise<{ data?: LogLines; error?: unknown; response: Response }> }) {
  const live = useLive(`callbacks ${of}`, () => ok(read()), { on: [topic] })
  const found = live.data.value
  if (!found) return live.error.value ? <Empty title={t.task.callbacksNone}><p>{live.error.value}</p></Empty> : <Skeleton rows={5} />
  return <pre tabIndex={0} class="code">{found.lines.join('\n')}</pre>
}

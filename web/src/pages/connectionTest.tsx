/** The test of a stored connection by a worker, which reaches what tasks reach: the web process opens no connection. */
import { useEffect, useRef, useState } from 'preact/hooks'
import { api, message, ok } from '../api/client'
import { useLive } from '../live/resource'
import { Button, Note } from '../parts/basic'
import { t } from '../strings'

const c = t.connections
const POLL_MS = 400

/** Ask a worker, and wait for its answer; the server ends the wait. ApiError if no worker can be asked. */
export async function testConnection(id: string, queue: string | null): Promise<{ ok: boolean; text: string }> {
  let test = await ok(api.POST('/api/v2/connectionTests', { body: { connection_id: id, ...(queue ? { queue } : {}) } }))
  while (test.state === 'pending') {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS))
    test = await ok(api.GET('/api/v2/connectionTests/{token}', { params: { path: { token: test.token } } }))
  }
  return { ok: test.state === 'success', text: test.worker ? `${test.message} (${test.worker})` : (test.message ?? '') }
}

export function TestConnection({ id, changed }: { id: string; changed: boolean }) {
  const [found, find] = useState<{ ok: boolean; text: string } | null>(null)
  const [busy, setBusy] = useState(false)
  const [queue, choose] = useState('')
  const answer = useRef<HTMLDivElement>(null)
  // The form is longer than the dialog.
  useEffect(() => {
    if (found) answer.current?.scrollIntoView({ block: 'nearest' })
  }, [found])
  const queues = useLive('queues', () => ok(api.GET('/api/v2/queues')), { fresh: 10_000, every: 0 }).data.value?.queues.filter((one) => one.workers.length > 0) ?? []
  const test = async () => {
    setBusy(true)
    find(null)
    find(await testConnection(id, queue || null).catch((error: unknown) => ({ ok: false, text: message(error) })))
    setBusy(false)
  }
  return (
    <div class="field" role="group" aria-label={c.test}>
      <span class="row">
        <Button disabled={busy} onClick={() => void test()}>{busy ? c.testing : c.test}</Button>
        {queues.length > 1 && (
          <select class="select" aria-label={t.task.queue} value={queue} onChange={(event) => choose(event.currentTarget.value)}>
            <option value="">{c.anyQueue}</option>
            {queues.map((one) => <option key={one.queue} value={one.queue}>{t.task.queue}: {one.queue}</option>)}
          </select>
        )}
      </span>
      <span class="hint">{changed ? c.testChanged : c.testHint}</span>
      <div role="status" ref={answer}>{found && <Note kind={found.ok ? 'good' : 'bad'}>{found.text}</Note>}</div>
    </div>
  )
}

/** What empty lists offer: an example to copy, the way back from filters that nothing matches, the first run. */
import { useState } from 'preact/hooks'
import { setQuery } from '../shell/router'
import { t } from '../strings'
import { Button, Empty } from './basic'

export function Example({ text }: { text: string }) {
  const [done, setDone] = useState(false)
  return (
    <div class="example">
      <pre tabIndex={0} class="code">{text}</pre>
      <Button kind="first" icon={done ? 'check' : 'copy'} onClick={() => void navigator.clipboard?.writeText(text).then(() => setDone(true))}>{done ? t.copied : t.copyExample}</Button>
    </div>
  )
}

/** Of a list whose filters have these names in the address. */
export function NothingFits({ title = t.nothingFits, filters }: { title?: string; filters: readonly string[] }) {
  return <Empty title={title}><Button onClick={() => setQuery(Object.fromEntries([...filters, 'offset'].map((one) => [one, null])))}>{t.removeFilters}</Button></Empty>
}

export function NoRuns({ onTrigger }: { onTrigger: (() => void) | null }) {
  return (
    <Empty title={t.dag.noRuns}>
      <p>{t.dag.noRunsText}</p>
      {onTrigger && <Button kind="first" icon="play" onClick={onTrigger}>{t.dags.trigger}</Button>}
    </Empty>
  )
}

/** The XComs of a task instance. Values are read when they are opened. */
import { useState } from 'preact/hooks'
import { api, ok } from '../../api/client'
import { useLive } from '../../live/resource'
import { Copy, Empty, Note, Skeleton, Time } from '../../parts/basic'
import { Icon } from '../../parts/icons'
import { t } from '../../strings'

interface Props {
  path: { dag_id: string; dag_run_id: string; task_id: string }
  index: number
  operator: boolean
}

export function XComs({ path, index }: Props) {
  const live = useLive(`xcoms ${Object.values(path).join(' ')} ${index}`, () => ok(api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/xcomEntries', { params: { path, query: { map_index: index, limit: 200 } } })), { on: [`dag:${path.dag_id}`] })
  const page = live.data.value
  if (live.error.value && !page) return <Note kind="bad">{live.error.value}</Note>
  if (!page) return <Skeleton rows={4} />
  if (!page.xcom_entries.length) return <Empty title={t.task.xcomNone}><p>{t.task.xcomNoneText}</p></Empty>
  return (
    <div class="stack">
      {page.xcom_entries.map((one) => <Value key={`${one.key} ${one.map_index}`} path={path} name={one.key} at={one.timestamp} index={one.map_index} open={page.xcom_entries.length <= 3} />)}
    </div>
  )
}

function Value({ path, name, at, index, open: initially }: { path: Props['path']; name: string; at: string; index: number; open: boolean }) {
  const [open, setOpen] = useState(initially)
  const live = useLive(open ? `xcom ${Object.values(path).join(' ')} ${index} ${name} ${at}` : null, () => ok(api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/xcomEntries/{xcom_key}', { params: { path: { ...path, xcom_key: name }, query: { map_index: index } } })), { every: 0 })
  const value = live.data.value as { value: unknown } | undefined
  const text = value === undefined ? '' : typeof value.value === 'string' ? value.value : JSON.stringify(value.value, null, 2)
  return (
    <section class="card">
      <header>
        <button type="button" class="button plain" aria-expanded={open} onClick={() => setOpen(!open)}><Icon name={open ? 'down' : 'right'} /><span class="mono">{name}</span></button>
        <span class="dim small"><Time at={at} /></span>
        {value && <span class="end"><Copy text={text} /></span>}
      </header>
      {open && (live.error.value ? <Note kind="bad">{live.error.value}</Note> : <pre tabIndex={0} class="code" style={{ margin: '8px', maxHeight: '420px', minHeight: '40px' }}>{text.slice(0, 200_000)}</pre>)}
    </section>
  )
}

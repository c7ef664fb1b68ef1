/** The grid of a DAG: how many runs, which tasks, folded groups. */
import { useEffect, useMemo, useState } from 'preact/hooks'
import { Grid } from '../../grid/Grid'
import { initiallyFolded, rows, type GridData } from '../../grid/model'
import { useLive } from '../../live/resource'
import { Button, Note, Search, Skeleton } from '../../parts/basic'
import { ahead, Lazy } from '../../parts/Lazy'
import { Mark } from '../../parts/State'
import { go, query, setQuery, to } from '../../shell/router'
import { RUN_STATES, STATES, label } from '../../states'
import { t } from '../../strings'
import { gridOf, window } from './data'
import { NoRuns } from '../../parts/NextStep'
import { beginTask } from '../task/view'
import { useHeight } from './useHeight'

/** A narrow window has no room for details beside the grid: a click leads to their page. */
const narrow = () => innerWidth < 1000
/** Beside the grid after the first click, which does not wait for it. */
const panel = () => import('./TaskPanel')
const COUNTS = ['25', '50', '100', '365']

export function GridTab({ dagId, onTrigger }: { dagId: string; onTrigger: (() => void) | null }) {
  const shownRuns = window()
  const { limit, offset, state } = shownRuns
  const live = useLive(...gridOf(dagId, shownRuns), { on: [`dag:${dagId}`], keep: true })
  const data = live.data.value as (GridData & { total_entries: number }) | undefined
  const [folded, setFolded] = useState<ReadonlySet<string> | null>(null)
  const [filter, setFilter] = useState('')
  const [box, height] = useHeight()
  useEffect(() => {
    if (data && folded === null) setFolded(initiallyFolded(data))
  }, [data])
  useEffect(() => {
    return data && !narrow() ? ahead(panel) : undefined
  }, [!data])
  const shown = useMemo(() => (data ? rows(data, folded ?? new Set(), filter) : []), [data, folded, filter])
  const fold = (group: string) => setFolded((old) => {
    const next = new Set(old)
    if (!next.delete(group)) next.add(group)
    return next
  })
  if (live.error.value && !data) return <Note kind="bad">{live.error.value}</Note>
  if (!data) return <Skeleton rows={14} height={24} />
  if (!data.runs.length && !state && !offset) {
    return <NoRuns onTrigger={onTrigger} />
  }
  const selected = narrow() || !query.value.get('run') || !query.value.get('task') ? null : { runId: query.value.get('run')!, taskId: query.value.get('task')! }
  const open = (runId: string, taskId: string) => {
    if (selected?.runId !== runId || selected.taskId !== taskId) beginTask({ dag_id: dagId, dag_run_id: runId, task_id: taskId })
    if (narrow()) go(to('dags', dagId, 'runs', runId, 'tasks', taskId))
    else setQuery({ run: runId, task: taskId, try: null }, selected !== null)
  }
  const groups = data.groups.map((group) => group.group_id)
  return (
    <div>
      <div class="filters">
        <Search value={filter} onInput={setFilter} placeholder={t.dag.filterTasks} />
        <select class="select" aria-label={t.dag.runsShown} value={String(limit)} onChange={(event) => setQuery({ runs: event.currentTarget.value, offset: null })}>
          {COUNTS.map((one) => <option key={one} value={one}>{one} {t.dag.runsShown.toLowerCase()}</option>)}
        </select>
        <select class="select" aria-label={t.run.state} value={state ?? ''} onChange={(event) => setQuery({ state: event.currentTarget.value, offset: null })}>
          <option value="">{t.run.state}: {t.any}</option>
          {RUN_STATES.map((one) => <option key={one} value={one}>{t.run.state}: {label(one)}</option>)}
        </select>
        {groups.length > 0 && <Button kind="plain" onClick={() => setFolded(folded?.size ? new Set() : new Set(groups))}>{folded?.size ? t.dag.expand : t.dag.fold}</Button>}
        <span class="grow" />
        <span class="small dim num">{t.dag.tasks(data.tasks.length)}, {t.page.of(offset + 1, offset + data.runs.length, data.total_entries)}</span>
        <Button icon="left" label={t.dag.more} disabled={offset + data.runs.length >= data.total_entries} onClick={() => setQuery({ offset: String(offset + limit) }, false)} />
        <Button icon="right" label={t.dag.newest} disabled={offset === 0} onClick={() => setQuery({ offset: offset > limit ? String(offset - limit) : null }, false)} />
      </div>
      <div ref={box} class="grid-and-panel">
        <div class="grow"><Grid dagId={dagId} data={data} rows={shown} onFold={fold} height={height} labelWidth={innerWidth < 560 ? 140 : selected ? 190 : 240} selected={selected} onOpen={open} /></div>
        {selected && <Lazy key={dagId} load={panel} props={{ dagId, ...selected, runs: data.runs.map((run) => run.dag_run_id) }} />}
      </div>
      <div class="legend">
        {[...STATES].reverse().map((one) => <span key={one} class="row" style={{ gap: '5px' }}><Mark state={one} size={12} />{label(one)}</span>)}
      </div>
    </div>
  )
}

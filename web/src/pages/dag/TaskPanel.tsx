/** A task instance beside the grid. The arrow keys lead to the same task in the run before and after; Escape closes it. */
import { useEffect } from 'preact/hooks'
import { runName } from '../../format'
import { Button } from '../../parts/basic'
import { Icon } from '../../parts/icons'
import { plainKey } from '../../parts/List'
import { Mark } from '../../parts/State'
import { href, query, setQuery, to } from '../../shell/router'
import { t } from '../../strings'
import { TaskView } from '../task/Task'

/** `runs`: those of the grid, the newest first. */
export default function TaskPanel({ dagId, runId, taskId, runs }: { dagId: string; runId: string; taskId: string; runs: string[] }) {
  const at = runs.indexOf(runId)
  const before = at < 0 ? undefined : runs[at + 1]
  const after = runs[at - 1]
  const show = (run: string | undefined) => run && setQuery({ run, try: null, line: null })
  const close = () => {
    setQuery({ run: null, task: null, tab: null, try: null, line: null })
    document.querySelector<HTMLElement>('.grid-box')?.focus()
  }
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (!plainKey(event)) return
      if (event.key === 'Escape') close()
      // The cursor of the grid and a log that scrolls have the arrows for themselves.
      else if (document.activeElement?.closest('[role=application], [role=log], [role=menu]')) return
      else if (event.key === 'ArrowLeft') show(before)
      else if (event.key === 'ArrowRight') show(after)
    }
    document.addEventListener('keydown', press)
    return () => document.removeEventListener('keydown', press)
  })
  const page = to('dags', dagId, 'runs', runId, 'tasks', taskId)
  return (
    <section class="panel" aria-label={t.dag.panelOf(taskId)}>
      <TaskView
        {...{ dagId, runId, taskId }}
        index={-1}
        inPanel
        tab={query.value.get('tab')}
        tabHref={(tab) => {
          const next = new URLSearchParams(query.value)
          next.set('tab', tab)
          return `${to('dags', dagId)}?${next}`
        }}
        head={({ name, state, actions }) => (
          <>
            <div class="panel-head">
              {state !== undefined && <Mark state={state} size={16} />}
              <h2 class="grow"><a href={href(page)} title={t.dag.openTask}>{name}</a></h2>
              {actions}
              <Button kind="plain" icon="left" label={t.dag.runBefore} disabled={!before} onClick={() => show(before)} />
              <Button kind="plain" icon="right" label={t.dag.runAfter} disabled={!after} onClick={() => show(after)} />
              <a class="button plain icon" href={href(page)} aria-label={t.dag.openTask} title={t.dag.openTask}><Icon name="out" /></a>
              <Button kind="plain" icon="close" label={t.close} onClick={close} />
            </div>
            <a class="small soft panel-run" href={href(to('dags', dagId, 'runs', runId))} title={runId}>{runName(runId)}</a>
          </>
        )}
      />
    </section>
  )
}

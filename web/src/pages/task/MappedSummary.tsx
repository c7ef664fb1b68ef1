/** The instances of a mapped task together: how many are in which state, and the errors that they have in common. */
import type { TaskInstanceView } from '../../api/types'
import { count } from '../../format'
import { Mark } from '../../parts/State'
import { StateBar } from '../../parts/StateBar'
import { href, to } from '../../shell/router'
import { t } from '../../strings'

export function MappedSummary({ dagId, runId, taskId, of }: { dagId: string; runId: string; taskId: string; of: TaskInstanceView }) {
  const page = to('dags', dagId, 'runs', runId, 'tasks', taskId)
  return (
    <div class="stack" style={{ gap: '10px', marginBottom: '12px' }}>
      <StateBar label={t.dag.instances(of.mapped_instances)} states={of.mapped_states ?? {}} link={(state) => href(`${page}?state=${state}`)} />
      {(of.mapped_errors?.length ?? 0) > 0 && (
        <section class="card">
          <header><h3>{t.task.errors}</h3></header>
          <ul class="rows">
            {of.mapped_errors!.map((one) => (
              <li key={`${one.state} ${one.reason}`}>
                <Mark state={one.state} />
                <strong class="num">{count(one.count)} ×</strong>
                <a class="grow" href={href(`${page}/${one.map_index}`)}><span class="wrong">{one.reason}</span> <span class="small soft nowrap">{t.task.ofIndex(one.map_index)}</span></a>
              </li>
            ))}
          </ul>
        </section>
      )}
    </div>
  )
}

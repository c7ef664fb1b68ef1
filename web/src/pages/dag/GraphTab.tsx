/** The graph of a DAG with the states of its newest run, or of the run of the page. */
import { grid } from '../../api/pictures'
import { api, ok } from '../../api/client'
import { Graph } from '../../graph/Graph'
import type { GraphData } from '../../graph/model'
import { useLive } from '../../live/resource'
import { Note, Skeleton } from '../../parts/basic'
import { known } from '../../states'
import type { TaskState } from '../../api/types'
import { shapeOf } from './data'
import { useHeight } from './useHeight'

interface Props {
  dagId: string
  runId: string | null
  version?: number | undefined
}

export function GraphTab({ dagId, runId, version }: Props) {
  const shape = useLive(...shapeOf(dagId, version), { every: 0 })
  const states = useLive(`graphstates ${dagId} ${runId ?? ''} ${version ?? ''}`, () => newest(dagId, runId, version), { on: [`dag:${dagId}`] })
  const [box, height] = useHeight(24)
  const data = shape.data.value as unknown as GraphData | undefined
  if (shape.error.value) return <Note kind="bad">{shape.error.value}</Note>
  if (!data) return <Skeleton rows={12} />
  const run = states.data.value
  const at = new Map(run?.tasks.map((task, index) => [task, index]))
  const index = (task: number) => at.get(data.nodes[task]!.task_id) ?? -1
  const stateOf = (task: number): TaskState | null => {
    const code = run?.states[index(task)]
    return code === undefined || code === ' ' ? null : known(run!.codes[code])
  }
  return (
    <div ref={box}>
      <Graph key={data.content_hash} data={data} stateOf={stateOf} countsOf={(task) => run?.mapped[index(task)] ?? {}} runId={run?.runId ?? null} height={Math.max(280, height - 38)} />
    </div>
  )
}

interface States {
  runId: string
  tasks: string[]
  states: string
  mapped: Record<string, Record<string, number>>
  codes: Record<string, string>
}

async function newest(dagId: string, runId: string | null, version: number | undefined): Promise<States | null> {
  const query = { limit: 1, ...(version ? { version_number: version } : {}), ...(runId ? { run_id_pattern: runId.replace(/[\\%_]/g, '\\$&') } : {}) }
  const found = runId ? await ok(api.GET('/api/v2/dags/{dag_id}/grid', { params: { path: { dag_id: dagId }, query } })) : await grid(dagId, { limit: 1 })
  const run = found.runs[0]
  return run ? { runId: run.dag_run_id, tasks: found.tasks.map((task) => task.task_id), states: run.states, mapped: run.mapped as States['mapped'], codes: found.codes as States['codes'] } : null
}

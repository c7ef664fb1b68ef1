/** What the page of a DAG shows at first: each with the key of its data, and how to load it. */
import { api, ok } from '../../api/client'
import { graph, grid, timeline, type Timeline } from '../../api/pictures'
import { begin, seed } from '../../live/resource'
import { query } from '../../shell/router'

export const details = (dagId: string) =>
  [`dag ${dagId}`, () => ok(api.GET('/api/v2/dags/{dag_id}/details', { params: { path: { dag_id: dagId } } }))] as const

/** The runs of the grid that the address names. */
export function window(): { limit: number; offset: number; state: string | null } {
  const q = query.value
  return { limit: Number(q.get('runs') ?? 50) || 50, offset: Number(q.get('offset') ?? 0) || 0, state: q.get('state') }
}
export const gridOf = (dagId: string, { limit, offset, state }: ReturnType<typeof window>) =>
  [`grid ${dagId} ${limit} ${offset} ${state}`, () => grid(dagId, { limit, offset, ...(state ? { state: [state] } : {}) })] as const

export const shapeOf = (dagId: string, version?: number) => [`graph ${dagId} ${version ?? ''}`, () => graph(dagId, version)] as const

/** The timeline comes with the run, which other tabs show too. */
export const timelineOf = (dagId: string, runId: string) =>
  [
    `timeline ${dagId} ${runId}`,
    async (): Promise<Timeline> => {
      const found = await timeline(dagId, runId)
      seed(`run ${dagId} ${runId}`, found.run)
      return found
    },
  ] as const

export function beginDag(dagId: string, runId: string | undefined, tab: string | undefined): void {
  begin(...details(dagId))
  if (runId !== undefined) {
    if (!tab) begin(...timelineOf(dagId, runId))
  } else if (!tab) begin(...gridOf(dagId, window()))
  else if (tab === 'graph') begin(...shapeOf(dagId))
}

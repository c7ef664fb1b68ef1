/** The newest runs of several DAGs, and how many runs each DAG has in each state. */
import { api, ok } from '../api/client'
import type { RecentRun } from '../api/types'

/** Bars of one DAG. */
export const BARS = 14
export type Recent = Map<string, RecentRun[]>
export type Counts = Map<string, Record<string, number>>

/** The newest runs of each DAG, the oldest first. */
export async function recentRuns(dagIds: string[]): Promise<Recent> {
  if (!dagIds.length) return new Map()
  const found = await ok(api.GET('/api/v2/recentRuns', { params: { query: { dag_ids: dagIds, limit: BARS } } }))
  return new Map(Object.entries(found.dags).map(([dagId, runs]) => [dagId, [...runs].reverse()]))
}

export async function counts(dagIds: string[]): Promise<Counts> {
  if (!dagIds.length) return new Map()
  const page = await ok(api.GET('/api/v2/dagStats', { params: { query: { dag_ids: dagIds } } }))
  return new Map(page.dags.map((dag) => [dag.dag_id, Object.fromEntries(dag.stats.map((one) => [one.state, one.count]))]))
}

/** Requests of the pages of a DAG. */
import type { components } from './schema'
import { api, ok } from './client'

type S = components['schemas']
export type Timeline = S['Timeline']
export type TimelineBar = S['Bar']
export type GridOf = S['Grid']
export type GraphOf = Omit<S['Graph'], 'edges'> & { edges: number[][] }

export function grid(dagId: string, query: { limit: number; offset?: number; state?: string[]; run_type?: string[] }): Promise<GridOf> {
  return ok(api.GET('/api/v2/dags/{dag_id}/grid', { params: { path: { dag_id: dagId }, query } }))
}
export function graph(dagId: string, version?: number): Promise<GraphOf> {
  return ok(api.GET('/api/v2/dags/{dag_id}/graph', { params: { path: { dag_id: dagId }, query: version ? { version_number: version } : {} } }))
}
export function timeline(dagId: string, runId: string): Promise<Timeline> {
  return ok(api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/timeline', { params: { path: { dag_id: dagId, dag_run_id: runId } } }))
}

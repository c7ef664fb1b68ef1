/** What the page of a task instance shows at first, which a click requests before the page is there. */
import { api, ok } from '../../api/client'
import type { TaskInstanceView } from '../../api/types'
import { begin, seed } from '../../live/resource'
import { query } from '../../shell/router'

export interface Path {
  dag_id: string
  dag_run_id: string
  task_id: string
}
export const pathOf = (params: Record<string, string>): Path => ({ dag_id: params['dag']!, dag_run_id: params['run']!, task_id: params['task']! })
export const indexOf = (params: Record<string, string>) => (params['map'] !== undefined && params['map'] !== '-' ? Number(params['map']) : -1)
export const keyOf = (path: Path, index: number) => `${path.dag_id} ${path.dag_run_id} ${path.task_id} ${index}`
export const whyKey = (path: Path, index: number) => `why ${keyOf(path, index)}`

/** All of it in one request: also the end of the log, unless that follows by itself. */
export async function view(path: Path, index: number, follows: boolean): Promise<TaskInstanceView> {
  const asked = Number(query.peek().get('try'))
  const of = { map_index: index, lines: follows ? 0 : 1000, ...(asked ? { try_number: asked } : {}) }
  const page = await ok(api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/view', { params: { path, query: of } }))
  if (page.why) seed(whyKey(path, index), page.why)
  return page
}

export function beginTask(path: Path, index = -1): void {
  begin(`ti ${keyOf(path, index)}`, () => view(path, index, false))
}

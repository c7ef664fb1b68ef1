/** Requests of tasks to people, and the answers. */
import { api, ok } from '../api/client'
import type { components } from '../api/schema'
import type { TaskState } from '../api/types'
import { account, mayChange } from '../shell/session'

export type Asked = components['schemas']['HitlDetail']
export type AskedPage = components['schemas']['HitlDetailPage']
/** The key of the number of waiting requests. */
export const WAITING = 'requests waiting'
/** States of a task instance that can still use an answer. */
const OPEN: TaskState[] = ['scheduled', 'queued', 'running', 'up_for_reschedule', 'deferred']
export type Kind = 'waiting' | 'answered'

export function requests(kind: Kind, limit: number, offset: number): Promise<AskedPage> {
  const query = kind === 'answered' ? { response_received: true, order_by: ['-responded_at'] } : { response_received: false, order_by: ['created_at'], state: OPEN }
  return ok(api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/hitlDetails', { params: { path: { dag_id: '~', dag_run_id: '~' }, query: { ...query, limit, offset } } }))
}

export async function waitingCount(): Promise<number> {
  return (await requests('waiting', 1, 0)).total_entries
}

/** Whether this account is one of those who may answer; the server also asks for the role on the DAG. */
export function mayAnswer(asked: Asked): boolean {
  const users = asked.assigned_users ?? []
  const own = account.value?.username
  return mayChange(asked.task_instance.dag_id) && (!users.length || users.some((user) => user.id === own || user.name === own))
}

/** The options that are an answer by themselves: one is chosen, and there are no values to give. */
export function answers(asked: Asked): readonly string[] {
  return asked.multiple || asked.response_received || Object.keys(asked.params ?? {}).length || !mayAnswer(asked) ? [] : asked.options
}

export async function answer(asked: Asked, options: readonly string[], values: Record<string, unknown>): Promise<void> {
  const { dag_id, dag_run_id, task_id, map_index } = asked.task_instance
  await ok(api.PATCH('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}/hitlDetails', { params: { path: { dag_id, dag_run_id, task_id, map_index } }, body: { chosen_options: [...options], params_input: values } }))
}

/** Whether a task of this operator asks a person. */
export const asks = (operator: string | null | undefined) => /^(HITL|Approval)/.test(operator ?? '')

/** How many DAG files cannot be read. */
export async function importCount(): Promise<number> {
  return (await ok(api.GET('/api/v2/importErrors', { params: { query: { limit: 1 } } }))).total_entries
}

/** The states of task instances and runs: order, color and shape. A state never differs from another one by color only. */
import type { TaskState } from './api/types'
import { t } from './strings'

/** From what needs attention most to what needs it least; groups show the first one that a member has. */
export const STATES: readonly TaskState[] = [
  'failed', 'upstream_failed', 'up_for_retry', 'restarting', 'running', 'queued', 'scheduled', 'deferred', 'up_for_reschedule',
  'none', 'removed', 'skipped', 'success',
]
export const RUN_STATES = ['queued', 'running', 'success', 'failed'] as const
export const FINISHED: ReadonlySet<TaskState> = new Set(['success', 'failed', 'upstream_failed', 'skipped', 'removed'])
export const FAILURES: ReadonlySet<TaskState> = new Set(['failed', 'upstream_failed'])

export function known(state: string | null | undefined): TaskState {
  if (state === 'shutdown') return 'restarting'
  return (STATES as readonly string[]).includes(state ?? '') ? (state as TaskState) : 'none'
}

export function label(state: string | null | undefined): string {
  return t.states[known(state)]
}

export function color(state: string | null | undefined): string {
  return `var(--s-${known(state)})`
}

/** The state that represents several. */
export function worst(states: Iterable<TaskState>): TaskState {
  let at = STATES.length
  for (const state of states) at = Math.min(at, STATES.indexOf(state))
  return STATES[at] ?? 'none'
}

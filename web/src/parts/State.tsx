/** A state as a shape: filled for what has ended, outlined for what waits, turning for what runs. */
import type { JSX } from 'preact'
import type { TaskState } from '../api/types'
import { color, known, label } from '../states'

const disc = <circle class="fill" cx="7" cy="7" r="6" />
const ring = (dash?: string) => <circle class="edge" cx="7" cy="7" r="5.1" stroke-width="1.7" stroke-dasharray={dash} />
const ink = (d: string) => <path class="ink" d={d} fill="none" stroke-width="1.6" stroke-linecap="round" stroke-linejoin="round" />
const edge = (d: string) => <path class="edge" d={d} stroke-width="1.6" stroke-linecap="round" stroke-linejoin="round" />

const SHAPES: Record<TaskState, JSX.Element> = {
  success: <>{disc}{ink('M4.4 7.2l1.8 1.8 3.4-3.9')}</>,
  failed: <><path class="fill" d="M4.2 1h5.6L13 4.2v5.6L9.8 13H4.2L1 9.8V4.2z" />{ink('M5 5l4 4M9 5l-4 4')}</>,
  upstream_failed: <><path class="fill" d="M7 1l6.4 11.6H.6z" />{ink('M7 5.4v3M7 10.4v.2')}</>,
  running: <><g class="spin"><circle class="edge" cx="7" cy="7" r="5.1" stroke-width="1.8" stroke-dasharray="21 11" stroke-linecap="round" /></g><circle class="fill" cx="7" cy="7" r="2.3" /></>,
  queued: <>{ring()}<circle class="fill" cx="7" cy="7" r="1.6" /></>,
  scheduled: ring('2.6 2.7'),
  up_for_retry: <>{edge('M12.1 7A5.1 5.1 0 1 1 10.4 3.2')}{edge('M12.4 1.2l-.4 3.2-3.2-.5')}</>,
  up_for_reschedule: <>{ring()}{edge('M7 4.2V7l2 1.4')}</>,
  deferred: <><rect class="fill" x="1" y="1" width="12" height="12" rx="3.4" />{ink('M5.3 4.6v4.8M8.7 4.6v4.8')}</>,
  skipped: <>{disc}{ink('M4.7 9.3l4.6-4.6')}</>,
  removed: <>{edge('M3 7h8')}</>,
  restarting: <><rect class="fill" x="1" y="1" width="12" height="12" rx="2" /><rect class="inkfill" x="4.7" y="4.7" width="4.6" height="4.6" /></>,
  none: <circle class="edge" cx="7" cy="7" r="2.4" stroke-width="1.4" />,
}

export function Mark({ state, size = 14 }: { state: string | null | undefined; size?: number }) {
  const name = known(state)
  return (
    <svg class={`mark${name === 'running' ? ' turns' : ''}`} viewBox="0 0 14 14" width={size} height={size} style={{ '--c': color(name === 'none' ? 'queued' : name) }} role="img" aria-label={label(state)}>
      {SHAPES[name]}
    </svg>
  )
}

export function State({ state }: { state: string | null | undefined }) {
  return (
    <span class="state">
      <Mark state={state} />
      <span aria-hidden="true">{label(state)}</span>
    </span>
  )
}

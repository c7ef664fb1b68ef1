/** Which tasks of two runs differ, and how much. Pure. */
import type { components } from '../../api/schema'
import { known, worst } from '../../states'
import type { TaskState } from '../../api/types'

export type Compared = components['schemas']['ComparedTask']
type Side = components['schemas']['ComparedSide']

/** A duration differs if it changed by this much and by this factor: less is noise. */
const LEAST_S = 1
const LEAST_FACTOR = 1.2

export interface Line {
  task: Compared
  now: TaskState | null
  before: TaskState | null
  /** Seconds that it ran longer than before; null if one of the two has not run. */
  slower: number | null
  differs: boolean
  /** Whether `slower` is more than noise. */
  longer: boolean
}

export const stateOf = (side: Side | null): TaskState | null => (side ? worst(Object.keys(side.states).map((state) => known(state))) : null)

/** All tasks, those with another state first, then by the change of their duration. */
export function lines(tasks: readonly Compared[]): Line[] {
  const found = tasks.map((task): Line => {
    const [now, before] = [stateOf(task.now), stateOf(task.before)]
    const [a, b] = [task.now?.seconds ?? null, task.before?.seconds ?? null]
    const slower = a !== null && b !== null ? a - b : null
    const longer = slower !== null && Math.abs(slower) >= LEAST_S && Math.max(a!, b!) >= LEAST_FACTOR * Math.min(a!, b!)
    return { task, now, before, slower, longer, differs: now !== before || longer || (task.now?.tries ?? 0) !== (task.before?.tries ?? 0) || JSON.stringify(task.now?.states) !== JSON.stringify(task.before?.states) }
  })
  const rank = (line: Line) => (line.now !== line.before ? 0 : line.differs ? 1 : 2)
  return found.sort((a, b) => rank(a) - rank(b) || Math.abs(b.slower ?? 0) - Math.abs(a.slower ?? 0))
}

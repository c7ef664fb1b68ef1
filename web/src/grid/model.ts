/** The rows of a grid: tasks and folding groups in topological order, and the state of each cell. Pure. */
import { known, worst } from '../states'
import type { TaskState } from '../api/types'

export interface GridTask {
  task_id: string
  group: string | null
  is_mapped: boolean
}
export interface GridGroup {
  group_id: string
  parent?: string | null
  tooltip?: string
}
export interface GridRun {
  dag_run_id: string
  run_type: string
  state: string
  logical_date: string | null
  run_after: string
  start_date: string | null
  end_date: string | null
  version_number: number
  /** One character for each task. */
  states: string
  tries: Record<string, number>
  mapped: Record<string, Record<string, number>>
}
export interface GridData {
  tasks: GridTask[]
  groups: GridGroup[]
  runs: GridRun[]
  codes: Record<string, string>
}

export interface Row {
  /** A task or group ID. */
  id: string
  /** What the label shows: without the names of the groups around it. */
  name: string
  depth: number
  /** The index of the task; -1 for a group. */
  task: number
  /** The tasks of a group, by index. */
  members: number[]
  folded: boolean
  mapped: boolean
}

interface Branch {
  group: string | null
  children: (Branch | number)[]
}

/** The rows that are shown: folded groups hide their members, and a filter shows matching tasks with their groups. */
export function rows(data: Pick<GridData, 'tasks' | 'groups'>, folded: ReadonlySet<string>, filter = ''): Row[] {
  const parents = new Map(data.groups.map((group) => [group.group_id, group.parent ?? null]))
  const branches = new Map<string | null, Branch>([[null, { group: null, children: [] }]])
  const branch = (id: string | null): Branch => {
    const found = branches.get(id)
    if (found) return found
    const made: Branch = { group: id, children: [] }
    branches.set(id, made)
    branch(parents.get(id!) ?? null).children.push(made)
    return made
  }
  const wanted = filter.trim().toLowerCase()
  data.tasks.forEach((task, at) => {
    if (!wanted || task.task_id.toLowerCase().includes(wanted)) branch(task.group).children.push(at)
  })
  const found: Row[] = []
  const members = (of: Branch): number[] => of.children.flatMap((child) => (typeof child === 'number' ? [child] : members(child)))
  const walk = (of: Branch, depth: number) => {
    for (const child of of.children) {
      if (typeof child === 'number') {
        const task = data.tasks[child]!
        found.push({ id: task.task_id, name: short(task.task_id, of.group), depth, task: child, members: [], folded: false, mapped: task.is_mapped })
      } else {
        const isFolded = folded.has(child.group!) && !wanted
        found.push({ id: child.group!, name: short(child.group!, of.group), depth, task: -1, members: members(child), folded: isFolded, mapped: false })
        if (!isFolded) walk(child, depth + 1)
      }
    }
  }
  walk(branches.get(null)!, 0)
  return found
}

function short(id: string, group: string | null): string {
  return group && id.startsWith(`${group}.`) ? id.slice(group.length + 1) : id
}

/** The state of a cell; null if the run does not have the task. */
export function stateAt(run: GridRun, row: Row, codes: Record<string, string>): TaskState | null {
  if (row.task >= 0) return ofCode(run.states[row.task], codes)
  const found = new Set<TaskState>()
  for (const member of row.members) {
    const state = ofCode(run.states[member], codes)
    if (state) found.add(state)
  }
  return found.size ? worst(found) : null
}

function ofCode(code: string | undefined, codes: Record<string, string>): TaskState | null {
  return code === undefined || code === ' ' ? null : known(codes[code])
}

/** Instances of a mapped task, or tasks of a group, by state. */
export function countsAt(run: GridRun, row: Row, codes: Record<string, string>): Record<string, number> {
  if (row.task >= 0) return run.mapped[row.task] ?? {}
  const counts: Record<string, number> = {}
  for (const member of row.members) {
    const state = ofCode(run.states[member], codes)
    if (state) counts[state] = (counts[state] ?? 0) + 1
  }
  return counts
}

/** Groups that are folded at first: all, if there are more tasks than fit a page. */
export function initiallyFolded(data: Pick<GridData, 'tasks' | 'groups'>, most = 150): Set<string> {
  return data.tasks.length > most ? new Set(data.groups.map((group) => group.group_id)) : new Set()
}

/** Seconds that a run took so far, or 0. */
export function lengthOf(run: Pick<GridRun, 'start_date' | 'end_date'>, now: number): number {
  return run.start_date ? Math.max(0, ((run.end_date ? Date.parse(run.end_date) : now) - Date.parse(run.start_date)) / 1000) : 0
}

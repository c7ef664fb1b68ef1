/** What a graph shows: tasks and folded groups as nodes, open groups as frames, edges between what is visible. Pure. */

export interface GraphNode {
  task_id: string
  operator: string
  group: string | null
  is_mapped: boolean
  is_setup: boolean
  is_teardown: boolean
  trigger_rule: string
  queue: string | null
  pool: string
}
export interface GraphData {
  dag_id: string
  version_number: number
  content_hash: string
  nodes: GraphNode[]
  groups: { group_id: string; parent?: string | null; tooltip?: string }[]
  edges: [number, number][]
}
export interface Box {
  id: string
  label: string
  /** The index of the task, or -1 for a folded group. */
  task: number
  members: number[]
  parent: string | null
  width: number
  height: number
  operator: string
  mapped: boolean
}
export interface Shown {
  boxes: Box[]
  /** Open groups with the group around each. */
  frames: { id: string; label: string; parent: string | null }[]
  edges: [string, string][]
}
export interface Placed {
  width: number
  height: number
  boxes: Record<string, { x: number; y: number }>
  frames: Record<string, { x: number; y: number; width: number; height: number }>
  edges: { from: string; to: string; points: { x: number; y: number }[] }[]
}

export const HEIGHT = 36

export function visible(data: GraphData, folded: ReadonlySet<string>): Shown {
  const parents = new Map(data.groups.map((group) => [group.group_id, group.parent ?? null]))
  /** The outermost folded group around a group, or null. */
  const foldedAround = (group: string | null): string | null => {
    let found: string | null = null
    for (let at = group; at; at = parents.get(at) ?? null) if (folded.has(at)) found = at
    return found
  }
  const boxes = new Map<string, Box>()
  const of: string[] = data.nodes.map((node, at) => {
    const group = foldedAround(node.group)
    const id = group === null ? `t:${node.task_id}` : `g:${group}`
    const box = boxes.get(id)
    if (box) box.members.push(at)
    else {
      const name = group ?? node.task_id
      const around = group === null ? node.group : (parents.get(group) ?? null)
      const label = short(name, around)
      boxes.set(id, {
        id, label, task: group === null ? at : -1, members: [at], parent: around, width: Math.min(260, Math.max(104, label.length * 7 + 50, (group === null ? node.operator.length + (node.is_mapped ? 6 : 0) : 0) * 6 + 50)), height: HEIGHT,
        operator: group === null ? node.operator : '', mapped: group === null && node.is_mapped,
      })
    }
    return id
  })
  const used = new Set<string>()
  for (const box of boxes.values()) for (let at = box.parent; at; at = parents.get(at) ?? null) used.add(at)
  const frames = data.groups.filter((group) => used.has(group.group_id)).map((group) => ({ id: group.group_id, label: short(group.group_id, group.parent ?? null), parent: group.parent ?? null }))
  const edges = new Map<string, [string, string]>()
  for (const [from, to] of data.edges) {
    const pair: [string, string] = [of[from]!, of[to]!]
    if (pair[0] !== pair[1]) edges.set(pair.join('\n'), pair)
  }
  return { boxes: [...boxes.values()], frames, edges: [...edges.values()] }
}

/** Groups that are folded at first: the largest ones, until no more than `most` boxes are left. */
export function initiallyFolded(data: GraphData, most = 40): Set<string> {
  const parents = new Map(data.groups.map((group) => [group.group_id, group.parent ?? null]))
  const sizes = new Map<string, number>()
  for (const node of data.nodes) for (let at = node.group; at; at = parents.get(at) ?? null) sizes.set(at, (sizes.get(at) ?? 0) + 1)
  const folded = new Set<string>()
  // Inner groups first, so that the outline of the DAG stays.
  const depth = (group: string | null): number => (group === null ? 0 : 1 + depth(parents.get(group) ?? null))
  const largest = [...sizes.keys()].sort((a, b) => depth(b) - depth(a) || sizes.get(b)! - sizes.get(a)!)
  /** The boxes right in each group: its tasks, and those of its groups that are folded. Folding makes one box of them. */
  const inside = new Map<string, number>()
  const add = (group: string | null) => group !== null && inside.set(group, (inside.get(group) ?? 0) + 1)
  for (const node of data.nodes) add(node.group)
  let boxes = data.nodes.length
  for (const group of largest) {
    if (boxes <= most) break
    folded.add(group)
    boxes -= inside.get(group)! - 1
    add(parents.get(group) ?? null)
  }
  return folded
}

function short(id: string, group: string | null): string {
  return group && id.startsWith(`${group}.`) ? id.slice(group.length + 1) : id
}

/** A smooth path through the points of an edge, which leaves and arrives along the direction of the graph. */
export function curve(points: readonly { x: number; y: number }[], direction: 'LR' | 'TB' = 'LR'): string {
  const [first, ...rest] = points
  if (!first || !rest.length) return ''
  let text = `M${first.x},${first.y}`
  let from = first
  for (const to of rest) {
    const middle = direction === 'LR' ? (from.x + to.x) / 2 : (from.y + to.y) / 2
    text += direction === 'LR' ? `C${middle},${from.y} ${middle},${to.y} ${to.x},${to.y}` : `C${from.x},${middle} ${to.x},${middle} ${to.x},${to.y}`
    from = to
  }
  return text
}

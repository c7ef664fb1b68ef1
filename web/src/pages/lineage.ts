/** The DAGs and assets around an asset, and how regularly it is updated. Pure. */
import type { Asset } from '../api/types'
import { HEIGHT, type Box, type Shown } from '../graph/model'

type Uses = Pick<Asset, 'id' | 'uri' | 'name' | 'producing_tasks' | 'scheduled_dags'>
/** More than this is no picture any more. */
const MOST = 60

/** What leads to an asset, and what it leads to, over any number of steps, until MOST boxes. */
export function lineage(assets: readonly Uses[], id: number): Shown {
  const edges = new Map<string, [string, string]>()
  for (const asset of assets) {
    for (const task of asset.producing_tasks) edges.set(`d:${task.dag_id}\na:${asset.id}`, [`d:${task.dag_id}`, `a:${asset.id}`])
    for (const dag of asset.scheduled_dags) edges.set(`a:${asset.id}\nd:${dag.dag_id}`, [`a:${asset.id}`, `d:${dag.dag_id}`])
  }
  const near = new Set([`a:${id}`])
  for (const [from, to] of [[0, 1], [1, 0]] as const) {
    const todo = [`a:${id}`]
    const seen = new Set(todo)
    for (let at = todo.shift(); at !== undefined && near.size < MOST; at = todo.shift()) {
      for (const edge of edges.values()) {
        if (edge[from] !== at || seen.has(edge[to])) continue
        seen.add(edge[to])
        near.add(edge[to])
        todo.push(edge[to])
      }
    }
  }
  const names = new Map(assets.map((asset) => [`a:${asset.id}`, asset.name || asset.uri]))
  const boxes = [...near].map((one): Box => {
    const label = one.startsWith('a:') ? (names.get(one) ?? one) : one.slice(2)
    return { id: one, label, parent: null, task: 0, members: [], width: Math.min(260, Math.max(110, label.length * 7 + 50)), height: HEIGHT, operator: one.startsWith('a:') ? 'asset' : 'DAG', mapped: false }
  })
  return { boxes, frames: [], edges: [...edges.values()].filter(([from, to]) => near.has(from) && near.has(to)) }
}

/** The median of the seconds between updates, which are given as moments; null with less than three. */
export function usualGap(moments: readonly string[]): number | null {
  const times = moments.map((one) => Date.parse(one)).sort((a, b) => a - b)
  const gaps = times.slice(1).map((time, at) => (time - times[at]!) / 1000).sort((a, b) => a - b)
  return gaps.length < 2 ? null : gaps[Math.floor(gaps.length / 2)]!
}

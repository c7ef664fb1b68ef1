/** What is selected as filters of the API, and the results of several filters as one. Pure. */
import type { components } from '../api/schema'

type Result = components['schemas']['ByFilter']

/** Filters for exactly these runs: one for each DAG, since run IDs of two DAGs may be equal. */
export function chosenRuns(pairs: readonly (readonly [string, string])[]): { dag_ids: string[]; dag_run_ids: string[] }[] {
  const found = new Map<string, string[]>()
  for (const [dagId, runId] of pairs) found.set(dagId, [...(found.get(dagId) ?? []), runId])
  return [...found].map(([dagId, runIds]) => ({ dag_ids: [dagId], dag_run_ids: runIds }))
}

/** Filters for exactly these task instances: one for all tasks that are not mapped, and one for each mapped task. */
export function chosenTasks(pairs: readonly (readonly [string, number])[]): { task_ids: string[]; map_index: number[] }[] {
  const plain = pairs.filter((pair) => pair[1] < 0).map((pair) => pair[0])
  const mapped = new Map<string, number[]>()
  for (const [id, index] of pairs) if (index >= 0) mapped.set(id, [...(mapped.get(id) ?? []), index])
  return [...(plain.length ? [{ task_ids: plain, map_index: [-1] }] : []), ...[...mapped].map(([id, indexes]) => ({ task_ids: [id], map_index: indexes }))]
}

/** One result for the results of several filters. */
export function sum(results: readonly Result[]): Result {
  const changes = new Map<string, Result['changes'][number]>()
  const dags = new Map<string, Result['dags'][number]>()
  for (const result of results) {
    for (const change of result.changes) {
      const key = `${change.state} ${change.becomes}`
      changes.set(key, { ...change, count: change.count + (changes.get(key)?.count ?? 0) })
    }
    for (const dag of result.dags) {
      const before = dags.get(dag.dag_id)
      dags.set(dag.dag_id, { ...dag, count: dag.count + (before?.count ?? 0), runs: Math.max(dag.runs, before?.runs ?? 0) })
    }
  }
  const total = (name: 'count' | 'runs') => results.reduce((before, result) => before + result[name], 0)
  return {
    dry_run: results.every((result) => result.dry_run),
    count: total('count'),
    // Filters that name tasks of one run each count it.
    runs: dags.size === 1 ? Math.max(0, ...results.map((result) => result.runs)) : total('runs'),
    changes: [...changes.values()],
    dags: [...dags.values()],
    errors: results.flatMap((result) => result.errors ?? []),
  }
}

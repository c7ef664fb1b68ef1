/** Layouts by the content of a DAG version and its folded groups, from memory or from the worker. */
import type { GraphData, Placed, Shown } from './model'
import type { Job } from './worker'

const cache = new Map<string, Placed>()
const MOST = 30
let worker: Worker | null = null
let next = 0
const waiting = new Map<number, (placed: Placed) => void>()

export function layoutKey(data: GraphData, folded: ReadonlySet<string>, direction: string): string {
  return `${data.content_hash} ${direction} ${[...folded].sort().join('\n')}`
}

export function cached(key: string): Placed | undefined {
  return cache.get(key)
}

export function layout(key: string, shown: Shown, direction: 'LR' | 'TB'): Promise<Placed> {
  if (!worker) {
    worker = new Worker(new URL('./worker.ts', import.meta.url), { type: 'module' })
    worker.onmessage = (event: MessageEvent<{ id: number; placed: Placed }>) => {
      waiting.get(event.data.id)?.(event.data.placed)
      waiting.delete(event.data.id)
    }
  }
  const id = next++
  return new Promise((resolve) => {
    waiting.set(id, (placed) => {
      cache.set(key, placed)
      if (cache.size > MOST) cache.delete(cache.keys().next().value!)
      resolve(placed)
    })
    worker!.postMessage({ id, shown, direction } satisfies Job)
  })
}

/** Which page an address has. Imports nothing, so the page of the address loads beside the frame of all pages. */
import type { ComponentType } from 'preact'

export type Page = ComponentType<{ params: Record<string, string> }>
/** A module of a page. `begin` requests its data while the server looks up the account. */
export type Loader = () => Promise<{ default: Page; begin?: (params: Record<string, string>) => void }>
const dag: Loader = () => import('../pages/dag/Dag')
const task: Loader = () => import('../pages/task/Task')
export const ROUTES: readonly (readonly [string, Loader])[] = [
  ['/', () => import('../pages/Home')],
  ['/dags', () => import('../pages/Dags')],
  ['/dags/:dag', dag],
  ['/dags/:dag/:tab', dag],
  ['/dags/:dag/runs/:run', dag],
  ['/dags/:dag/runs/:run/:tab', dag],
  ['/dags/:dag/runs/:run/tasks/:task', task],
  ['/dags/:dag/runs/:run/tasks/:task/:map', task],
  ['/dags/:dag/runs/:run/tasks/:task/:map/:tab', task],
  ['/runs', () => import('../pages/Runs')],
  ['/tasks', () => import('../pages/Tasks')],
  ['/actions', () => import('../pages/RequiredActions')],
  ['/assets', () => import('../pages/Assets')],
  ['/asset/:asset', () => import('../pages/Asset')],
  ['/tables', () => import('../pages/Tables')],
  ['/tables/:table', () => import('../pages/Table')],
  ['/backfills', () => import('../pages/Backfills')],
  ['/queues', () => import('../pages/Queues')],
  ['/pools', () => import('../pages/Pools')],
  ['/bundles', () => import('../pages/Bundles')],
  ['/bundles/:bundle', () => import('../pages/Bundle')],
  ['/bundles/:bundle/plan', () => import('../pages/BundlePlan')],
  ['/imports', () => import('../pages/Imports')],
  ['/variables', () => import('../pages/Variables')],
  ['/connections', () => import('../pages/Connections')],
  ['/audit', () => import('../pages/Audit')],
  ['/settings', () => import('../pages/Settings')],
]

export interface Match<P> {
  page: P
  params: Record<string, string>
}

/** The first route whose pattern fits: "/dags/:dag/:tab". */
export function match<P>(routes: readonly (readonly [string, P])[], path: string): Match<P> | null {
  const given = path.split('/').filter(Boolean)
  for (const [pattern, page] of routes) {
    const wanted = pattern.split('/').filter(Boolean)
    if (wanted.length !== given.length) continue
    const params: Record<string, string> = {}
    const fits = wanted.every((part, at) => {
      if (!part.startsWith(':')) return part === given[at]
      try {
        params[part.slice(1)] = decodeURIComponent(given[at]!)
      } catch {
        return false
      }
      return true
    })
    if (fits) return { page, params }
  }
  return null
}

/** The pages of the navigation. */
import type { IconName } from '../parts/icons'
import { t } from '../strings'
import type { Role } from './session'

export interface Place {
  path: string
  text: string
  icon: IconName
  /** The role that an account needs. */
  role?: Role
  /** Whether the account needs the role itself, since the page is about no DAG. */
  whole?: boolean
  /** The number that is shown beside it. */
  counts?: 'actions' | 'imports'
}

export const PLACES: { title: string; links: Place[] }[] = [
  {
    title: '',
    links: [
      { path: '/', text: t.home, icon: 'home' },
      { path: '/dags', text: t.nav.dags, icon: 'dags' },
      { path: '/runs', text: t.nav.runs, icon: 'runs' },
      { path: '/tasks', text: t.nav.tasks, icon: 'tasks' },
      { path: '/actions', text: t.nav.actions, icon: 'answer', counts: 'actions' },
      { path: '/assets', text: t.nav.assets, icon: 'assets', whole: true },
      { path: '/backfills', text: t.nav.backfills, icon: 'backfills' },
    ],
  },
  {
    title: t.nav.operate,
    links: [
      { path: '/queues', text: t.nav.queues, icon: 'queues', whole: true },
      { path: '/pools', text: t.nav.pools, icon: 'pools', whole: true },
      { path: '/bundles', text: t.nav.bundles, icon: 'bundles', whole: true },
      { path: '/imports', text: t.nav.imports, icon: 'imports', counts: 'imports' },
    ],
  },
  {
    title: t.nav.admin,
    links: [
      { path: '/variables', text: t.nav.variables, icon: 'variables', role: 'operator', whole: true },
      { path: '/connections', text: t.nav.connections, icon: 'connections', role: 'operator', whole: true },
      { path: '/audit', text: t.nav.audit, icon: 'audit' },
      { path: '/settings', text: t.nav.settings, icon: 'settings', role: 'admin', whole: true },
    ],
  },
]

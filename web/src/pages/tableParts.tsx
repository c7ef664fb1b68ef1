/** What the pages of tables share with each other and with that of assets. */
import type { components } from '../api/schema'
import { href, to } from '../shell/router'
import { t } from '../strings'

type Version = components['schemas']['TableVersion']

/** The two lists of data. */
export function AssetTabs({ current }: { current: '/assets' | '/tables' }) {
  return (
    <nav class="tabs" aria-label={t.assets.title}>
      {([['/assets', t.assets.title], ['/tables', t.tables.title]] as const).map(([path, text]) => <a key={path} href={href(path)} aria-current={current === path ? 'page' : undefined}>{text}</a>)}
    </nav>
  )
}

/** Who published a version: a task of a run, or somebody. */
export function By({ of }: { of: Version }) {
  if (!of.dag_id || !of.run_id) return <span class="soft">{of.published_by ?? '–'}</span>
  return <a href={href(to('dags', of.dag_id, 'runs', of.run_id, ...(of.task_id ? ['tasks', of.task_id, ...((of.map_index ?? -1) >= 0 ? [of.map_index!] : [])] : [])))}><strong>{of.dag_id}</strong> {of.task_id}{(of.map_index ?? -1) >= 0 ? ` [${of.map_index}]` : ''}</a>
}

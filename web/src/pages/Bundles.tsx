/** Bundles: the folders of code that were deployed, or that schedulers read, with their live versions. */
import { api, ok } from '../api/client'
import type { Bundle } from '../api/types'
import { useLive } from '../live/resource'
import { Empty, Note, Time } from '../parts/basic'
import { CountLink } from '../parts/CountLink'
import { Example } from '../parts/NextStep'
import { Head } from '../parts/Head'
import { List, type Column } from '../parts/List'
import { href, to } from '../shell/router'
import { t } from '../strings'

const s = t.bundles
const DEPLOY = 'paceline deploy FOLDER --bundle NAME'

export default function Bundles() {
  const live = useLive('bundles', () => ok(api.GET('/api/v2/bundles', { params: { query: { limit: 1000 } } })), { every: 5_000, keep: true })
  const columns: Column<Bundle>[] = [
    { key: 'name', head: s.name, class: 'wide', cell: (one) => <><a href={href(to('bundles', one.bundle_name))}>{one.bundle_name}</a>{one.source && <span class="small dim mono" style={{ display: 'block' }}>{String(one.source['url'] ?? '')}</span>}</> },
    { key: 'live', head: s.live, cell: (one) => <Versions of={one} /> },
    { key: 'message', head: s.message, class: 'wide named', cell: (one) => <span class="clip" title={one.message ?? ''}>{one.message || <span class="dim">–</span>}</span> },
    { key: 'at', head: s.liveSince, class: 'named', cell: (one) => <Time at={one.live_at} /> },
    { key: 'by', head: s.by, class: 'named hide-m', cell: (one) => one.created_by?.replace(/^(api|cli):/, '') ?? '–' },
    { key: 'dags', head: s.dags, right: true, class: 'named', cell: (one) => <CountLink value={one.dag_count} link={href(`/dags?bundle=${encodeURIComponent(one.bundle_name)}`)} label={s.dagsOf(one.dag_count, one.bundle_name)} /> },
    { key: 'versions', head: s.versions, right: true, class: 'named hide-m', cell: (one) => <CountLink value={one.version_count} link={href(to('bundles', one.bundle_name))} label={s.versionsOf(one.version_count, one.bundle_name)} /> },
  ]
  return (
    <>
      <Head title={s.title} />
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      <List label={s.title} columns={columns} rows={live.data.value?.bundles} failed={live.error.value !== null} rowKey={(one) => one.bundle_name} rowHref={(one) => to('bundles', one.bundle_name)} empty={<Empty title={s.none}><p>{s.noneText}</p><Example text={DEPLOY} /></Empty>} />
    </>
  )
}

/** The live version, and one that is on its way or was refused. */
function Versions({ of: one }: { of: Bundle }) {
  return (
    <>
      {one.live_version === null ? <span class="dim">{s.notLive}</span> : s.version(one.live_version)}
      {one.wanted_version !== null && one.wanted_version !== one.live_version && <span class={`small ${one.wanted_state === 'refused' ? 'wrong' : 'dim'}`} style={{ display: 'block' }}>{s.wanted(one.wanted_version, one.wanted_state ?? 'new')}</span>}
      {one.problem && <span class="small wrong" style={{ display: 'block' }}>{one.problem}</span>}
    </>
  )
}

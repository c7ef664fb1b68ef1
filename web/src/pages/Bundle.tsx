/** A bundle: its versions with the runs of each, what differs between two, and the way back to one. */
import { useState } from 'preact/hooks'
import { api, ok } from '../api/client'
import type { BundleVersion } from '../api/types'
import { bytes, count } from '../format'
import { useLive } from '../live/resource'
import { Button, Copy, Empty, Note, Skeleton, Time } from '../parts/basic'
import { CountLink } from '../parts/CountLink'
import { Head } from '../parts/Head'
import { List, type Column } from '../parts/List'
import { ViewOnly } from '../parts/ViewOnly'
import { href, query, setQuery, to } from '../shell/router'
import { t } from '../strings'
import { Difference } from './dag/Difference'
import { mayDeploy, RollBack } from './rollBack'

const s = t.bundles
const SIZE = 50
/** Its files go live one by one as they are saved, so there is no plan and no way back. */
const DAGS_FOLDER = 'dags-folder'

export default function Bundle({ params }: { params: Record<string, string> }) {
  const name = params['bundle']!
  const offset = Number(query.value.get('offset') ?? 0) || 0
  const path = { bundle_name: name }
  const [back, setBack] = useState<number | null>(null)
  const live = useLive(`bundle ${name} ${offset}`, () => ok(api.GET('/api/v2/bundles/{bundle_name}/versions', { params: { path, query: { limit: SIZE, offset } } })), { every: 3_000, keep: true })
  const page = live.data.value
  const shown = Number(query.value.get('version')) || page?.bundle_versions[0]?.version_number || null
  const columns: Column<BundleVersion>[] = [
    { key: 'version', head: s.versionHead, class: 'wide', cell: (one) => <><button type="button" class="as-link" aria-pressed={one.version_number === shown} onClick={() => setQuery({ version: String(one.version_number), since: null, file: null })}>{s.version(one.version_number)}</button> <StateOf version={one} /><span class="small soft clip" style={{ display: 'block' }}>{one.message}</span></> },
    { key: 'at', head: s.deployed, class: 'named', cell: (one) => <Time at={one.created_at} /> },
    { key: 'by', head: s.by, class: 'named', cell: (one) => one.created_by.replace(/^(api|cli):/, '') },
    { key: 'origin', head: s.origin, class: 'named hide-m', cell: (one) => (one.origin ? <span class="mono small clip" title={one.origin}>{one.origin}</span> : <span class="dim">–</span>) },
    { key: 'files', head: s.files, right: true, class: 'named hide-m', cell: (one) => `${count(one.file_count)} · ${bytes(one.byte_count)}` },
    { key: 'dags', head: s.dags, right: true, class: 'named', cell: (one) => <span class="num" title={one.dag_ids.join('\n')}>{one.is_live ? <CountLink value={one.dag_ids.length} link={href(`/dags?bundle=${encodeURIComponent(name)}`)} label={s.dagsOf(one.dag_ids.length, name)} /> : count(one.dag_ids.length)}</span> },
    { key: 'runs', head: s.runs, right: true, class: 'named', cell: (one) => <CountLink value={one.run_count} link={href(`/runs?${new URLSearchParams({ bundle: name, code: String(one.version_number) })}`)} label={s.runsOf(one.run_count, one.version_number)} /> },
    { key: 'act', head: '', right: true, cell: (one) => mayDeploy(name) && !one.is_wanted && name !== DAGS_FOLDER && <Button kind="plain" icon="clear" label={s.backTitle(one.version_number)} onClick={() => setBack(one.version_number)} /> },
  ]
  const version = page?.bundle_versions.find((one) => one.version_number === shown)
  return (
    <>
      <Head title={name} crumbs={[{ text: s.title, href: href('/bundles') }]}>{name !== DAGS_FOLDER && !mayDeploy(name) && <ViewOnly text={t.rights.lookBundle(name)} />}</Head>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      <List label={s.versions} columns={columns} rows={page?.bundle_versions} failed={live.error.value !== null} rowKey={(one) => String(one.version_number)} total={page?.total_entries} size={SIZE} empty={<Empty title={s.none} />} />
      {back !== null && <RollBack bundle={name} version={back} onClose={() => setBack(null)} onDone={live.refresh} />}
      {version && <Changes bundle={name} version={version} all={page!.bundle_versions} />}
    </>
  )
}

function StateOf({ version }: { version: BundleVersion }) {
  if (version.is_live) return <span class="tag on">{s.isLive}</span>
  if (version.state === 'refused') return <span class="tag bad">{s.refused}</span>
  return version.is_wanted || version.state === 'new' ? <span class="tag">{version.is_wanted ? s.parsing : s.notParsed}</span> : null
}

/** The problems of a version, and what it changed. */
function Changes({ bundle, version, all }: { bundle: string; version: BundleVersion; all: readonly BundleVersion[] }) {
  const number = version.version_number
  const older = all.filter((one) => one.version_number !== number)
  const since = Number(query.value.get('since')) || older.find((one) => one.version_number < number)?.version_number || null
  const file = query.value.get('file')
  const path = { bundle_name: bundle, version_number: number }
  const changes = useLive(`changes ${bundle} ${number} ${since}`, () => ok(api.GET('/api/v2/bundles/{bundle_name}/versions/{version_number}/changes', { params: { path, query: since ? { since } : {} } })), { every: 0 })
  const found = changes.data.value
  return (
    <section class="card" style={{ marginTop: '12px' }} aria-label={s.version(number)}>
      <header>
        <h2>{s.changesOf(number)}</h2>
        <span class="grow" />
        {bundle !== DAGS_FOLDER && version.state !== 'new' && <a class="button" href={href(`/bundles/${encodeURIComponent(bundle)}/plan?version=${number}`)}>{t.plan.plan}</a>}
        <label class="row small">{s.since}
          <select class="select" value={since ?? ''} onChange={(event) => setQuery({ since: event.currentTarget.value, file: null })}>
            {older.map((one) => <option key={one.version_number} value={one.version_number}>{s.version(one.version_number)}</option>)}
          </select>
        </label>
      </header>
      <div class="stack" style={{ padding: '10px 14px' }}>
        <p class="small soft"><span class="mono">{version.digest.slice(0, 16)}</span> <Copy text={version.digest} /></p>
        {version.problems?.map((one, at) => <Note key={at} kind="bad"><strong class="mono">{one.file}{one.line ? `:${one.line}` : ''}</strong> {one.message}</Note>)}
        {changes.error.value ? <Note kind="bad">{changes.error.value}</Note> : !found ? <Skeleton rows={3} /> : (
          <>
            {(version.state === 'ready' ? (['dags', 'files'] as const) : (['files'] as const)).map((what) => (
              <div key={what}>
                <h3>{s[what]}</h3>
                <ul class="rows">
                  {(['added', 'changed', 'removed'] as const).flatMap((how) => found[what][how].map((one) => (
                    <li key={one}>
                      <span class={`tag ${how === 'added' ? 'on' : how === 'removed' ? 'bad' : ''}`}>{s[how]}</span>
                      {what === 'dags' ? <a class="link" href={href(to('dags', one))}>{one}</a> : <button type="button" class="as-link mono" aria-expanded={file === one} onClick={() => setQuery({ file: file === one ? null : one })}>{one}</button>}
                    </li>
                  )))}
                  {Object.values(found[what]).every((names) => names.length === 0) && <li class="soft">{s.same}</li>}
                </ul>
              </div>
            ))}
            {file && <Texts bundle={bundle} path={file} before={found.files.added.includes(file) ? null : since} after={found.files.removed.includes(file) ? null : number} />}
          </>
        )}
      </div>
    </section>
  )
}

/** The difference of a file between two versions. */
function Texts({ bundle, path, before, after }: { bundle: string; path: string; before: number | null; after: number | null }) {
  const read = (number: number | null) => useLive(number ? `file ${bundle} ${number} ${path}` : null, () => ok(api.GET('/api/v2/bundles/{bundle_name}/versions/{version_number}/files/{path}', { params: { path: { bundle_name: bundle, version_number: number!, path } } })), { every: 0 })
  const [old, now] = [read(before), read(after)]
  const error = old.error.value ?? now.error.value
  if (error) return <Note kind="bad">{error}</Note>
  if ((before && !old.data.value) || (after && !now.data.value)) return <Skeleton rows={8} />
  return <div class="source" tabIndex={0} role="region" aria-label={path}><Difference before={old.data.value?.content ?? ''} after={now.data.value?.content ?? ''} /></div>
}

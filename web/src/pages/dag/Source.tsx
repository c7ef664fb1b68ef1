/** The source of a DAG, by version where it is kept, and its difference to another version. */
import { api, ok } from '../../api/client'
import { relative } from '../../format'
import { useLive } from '../../live/resource'
import { Copy, Empty, Note, Skeleton } from '../../parts/basic'
import { href, query, setQuery, to } from '../../shell/router'
import { t } from '../../strings'
import { Difference } from './Difference'
import { highlighted, type Piece } from './python'

/** Once, and not again when the text is loaded again. */
const seen = new WeakSet<HTMLElement>()
function intoView(row: HTMLElement | null): void {
  if (!row || seen.has(row)) return
  seen.add(row)
  row.scrollIntoView({ block: 'center' })
}

export default function Source({ dagId }: { dagId: string }) {
  const versions = useLive(`versions ${dagId}`, () => ok(api.GET('/api/v2/dags/{dag_id}/dagVersions', { params: { path: { dag_id: dagId }, query: { limit: 100, order_by: ['-version_number'] } } })), { on: [`dag:${dagId}`] })
  const all = versions.data.value?.dag_versions ?? []
  const ran = Number(query.value.get('ran')) || null
  // A run of a bundle executed the text of its version; one of a folder that is not pinned executed what the file had.
  const shown = Number(query.value.get('version')) || (all.find((one) => one.version_number === ran)?.bundle_version === null ? null : ran)
  const other = query.value.get('compare')
  /** The line that an import error names. */
  const line = Number(query.value.get('line')) || null
  const load = (version: number | null) => ok(api.GET('/api/v2/dagSources/{dag_id}', { params: { path: { dag_id: dagId }, query: version ? { version_number: version } : { file_now: line !== null } } }))
  // A version keeps its text; the file changes without a version, too.
  const source = useLive(ran && !versions.data.value ? null : `source ${dagId} ${shown} ${line !== null}`, () => load(shown), { every: shown ? 0 : 10_000 })
  const before = useLive(other ? `source ${dagId} ${Number(other) || null}` : null, () => load(Number(other) || null), { every: 0 })
  const found = source.data.value
  const text = found?.content ?? null
  const old = before.data.value?.content ?? null
  if (!versions.data.value) return <Skeleton rows={14} />
  const option = (one: (typeof all)[number]) => <option key={one.version_number} value={one.version_number}>{t.dag.version(one.version_number)}, {relative(one.created_at)}</option>
  const number = found?.version_number ?? 0
  const said = !found ? null : found.bundle_version && found.is_file_now ? t.dag.fileRefused(number) : found.bundle_version ? t.dag.pinned(found.version_number ?? 0, found.bundle_name ?? '', found.bundle_version) : found.is_file_now ? (shown ? t.dag.fileNotKept(shown) : null) : shown ? t.dag.fileThen(shown) : t.dag.fileGone(number)
  return (
    <>
      <div class="filters">
        <select class="select" aria-label={t.dag.versions} value={shown ?? ''} onChange={(event) => setQuery({ version: event.currentTarget.value, ran: null, compare: null })}>
          <option value="">{found?.bundle_version ? t.dag.newestVersion : t.dag.fileNow}</option>
          {all.map(option)}
        </select>
        <select class="select" aria-label={t.dag.compare} value={other ?? ''} disabled={all.length === 0} onChange={(event) => setQuery({ compare: event.currentTarget.value })}>
          <option value="">{all.length === 0 ? t.dag.compareNone : `${t.dag.compare} …`}</option>
          {shown && !found?.bundle_version && <option value="now">{t.dag.fileNow}</option>}
          {all.filter((one) => one.version_number !== shown).map(option)}
        </select>
        <span class="grow" />
        {text !== null && <Copy text={text} />}
      </div>
      {ran && !shown && found?.is_file_now && <div class="source-note"><Note kind="warn">{t.dag.fileRan(ran)} <a class="link" href={href(`${to('dags', dagId, 'source')}?version=${ran}`)}>{t.dag.textThen(ran)}</a></Note></div>}
      {said && !source.error.value && <div class="source-note"><Note kind={(found?.bundle_version && !found.is_file_now) || (shown && !found?.is_file_now) ? '' : 'warn'}>{said}</Note></div>}
      {source.error.value ? (
        <Empty title={t.dag.noSource}><p>{source.error.value}</p></Empty>
      ) : text === null ? (
        <Skeleton rows={14} />
      ) : other && before.error.value ? (
        <Empty title={t.dag.noSource}><p>{before.error.value}</p></Empty>
      ) : (
        <div class="source" tabIndex={0} role="region" aria-label={t.dag.source}>
          {other && old !== null ? <Difference before={old} after={text} /> : highlighted(text).map((pieces, at) => <div key={at} class={at + 1 === line ? 'wanted' : ''} aria-current={at + 1 === line ? 'location' : undefined} ref={at + 1 === line ? intoView : null}><span class="source-no">{at + 1}</span><Pieces of={pieces} /></div>)}
        </div>
      )}
    </>
  )
}

function Pieces({ of }: { of: Piece[] }) {
  return <>{of.map((piece, at) => (piece.kind ? <span key={at} class={`p-${piece.kind}`}>{piece.text}</span> : piece.text))}{'\n'}</>
}

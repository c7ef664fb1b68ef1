/** The source of a DAG, by version where it is kept, and its difference to another version. */
import { api, ok } from '../../api/client'
import { relative } from '../../format'
import { useLive } from '../../live/resource'
import { Copy, Empty, Skeleton } from '../../parts/basic'
import { query, setQuery } from '../../shell/router'
import { t } from '../../strings'
import { diff } from './diff'
import { highlighted, type Piece } from './python'

export default function Source({ dagId }: { dagId: string }) {
  const versions = useLive(`versions ${dagId}`, () => ok(api.GET('/api/v2/dags/{dag_id}/dagVersions', { params: { path: { dag_id: dagId }, query: { limit: 100, order_by: ['-version_number'] } } })), { on: [`dag:${dagId}`] })
  const all = versions.data.value?.dag_versions ?? []
  const shown = Number(query.value.get('version')) || all[0]?.version_number
  const other = Number(query.value.get('compare')) || null
  const load = (version: number | null | undefined) => ok(api.GET('/api/v2/dagSources/{dag_id}', { params: { path: { dag_id: dagId }, query: version ? { version_number: version } : {} } }))
  const source = useLive(shown ? `source ${dagId} ${shown}` : null, () => load(shown), { every: 0 })
  const before = useLive(other ? `source ${dagId} ${other}` : null, () => load(other), { every: 0 })
  const text = (source.data.value as { content: string | null } | undefined)?.content ?? null
  const old = (before.data.value as { content: string | null } | undefined)?.content ?? null
  if (!versions.data.value) return <Skeleton rows={14} />
  const option = (one: (typeof all)[number]) => <option key={one.version_number} value={one.version_number}>{t.dag.version(one.version_number)}, {relative(one.created_at)}</option>
  return (
    <>
      <div class="filters">
        <select class="select" aria-label={t.dag.versions} value={shown} onChange={(event) => setQuery({ version: event.currentTarget.value })}>{all.map(option)}</select>
        <select class="select" aria-label={t.dag.compare} value={other ?? ''} disabled={all.length < 2} onChange={(event) => setQuery({ compare: event.currentTarget.value })}>
          <option value="">{all.length < 2 ? t.dag.compareNone : `${t.dag.compare} …`}</option>
          {all.filter((one) => one.version_number !== shown).map(option)}
        </select>
        <span class="grow" />
        {text !== null && <Copy text={text} />}
      </div>
      {source.error.value ? (
        <Empty title={t.dag.noSource}><p>{source.error.value}</p></Empty>
      ) : text === null ? (
        <Skeleton rows={14} />
      ) : other && before.error.value ? (
        <Empty title={t.dag.noSource}><p>{before.error.value}</p></Empty>
      ) : (
        <div class="source" tabIndex={0} role="region" aria-label={t.dag.source}>
          {other && old !== null ? <Difference before={old} after={text} /> : highlighted(text).map((pieces, at) => <div key={at}><span class="source-no">{at + 1}</span><Pieces of={pieces} /></div>)}
        </div>
      )}
    </>
  )
}

function Difference({ before, after }: { before: string; after: string }) {
  const found = diff(before, after)
  if (found.every((line) => line.kind === ' ')) return <div class="empty">{t.dag.sourceSame}</div>
  return (
    <>
      {found.map((line, at) => (
        <div key={at} class={line.kind === '+' ? 'added' : line.kind === '-' ? 'removed' : ''}>
          <span class="source-no">{line.before ?? ''}</span>
          <span class="source-no">{line.after ?? ''}</span>
          <span class="source-sign">{line.kind}</span>
          {line.text}
        </div>
      ))}
    </>
  )
}

function Pieces({ of }: { of: Piece[] }) {
  return <>{of.map((piece, at) => (piece.kind ? <span key={at} class={`p-${piece.kind}`}>{piece.text}</span> : piece.text))}{'\n'}</>
}

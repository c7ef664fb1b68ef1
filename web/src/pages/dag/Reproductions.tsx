/** The reproductions of a run, each with what it has written beside the run; of a reproduction, itself. And the dialog that starts one. */
import { useEffect, useState } from 'preact/hooks'
import { api, message, ok } from '../../api/client'
import type { components } from '../../api/schema'
import type { DagRun } from '../../api/types'
import { count, runName } from '../../format'
import { nudge } from '../../live/changes'
import { useLive } from '../../live/resource'
import { Button, Check, Copy, Empty, Field, Note, Skeleton, Time } from '../../parts/basic'
import { List, type Column } from '../../parts/List'
import { Dialog, toast } from '../../parts/overlay'
import { State } from '../../parts/State'
import { href, query, setQuery, to } from '../../shell/router'
import { t } from '../../strings'

const r = t.reproduction
type Reproduction = components['schemas']['Reproduction']
type Table = components['schemas']['ReproducedTable']
/** How often the page asks for the result of a comparison. */
const COMPARING_MS = 1000
const TAGS: Record<Reproduction['verdict'], string> = { equal: 'on', different: 'bad', unknown: 'warn', comparing: '', pending: '' }

/** `may`: this account may reproduce the run, as far as it is known here. */
export default function Reproductions({ run, may }: { run: DagRun; may: boolean }) {
  const path = { dag_id: run.dag_id, dag_run_id: run.dag_run_id }
  const live = useLive(`reproductions ${run.dag_id} ${run.dag_run_id}`, () => ok(api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/reproductions', { params: { path } })), { on: [`dag:${run.dag_id}`] })
  const found = live.data.value?.reproductions
  const comparing = found?.some((one) => one.verdict === 'comparing')
  useEffect(() => {
    const timer = comparing ? setInterval(() => void live.refresh(), COMPARING_MS) : undefined
    return () => clearInterval(timer)
  }, [comparing])
  const asking = may && query.value.get('do') === 'reproduce'
  if (live.error.value && !found) return <Note kind="bad">{live.error.value}</Note>
  if (!found) return <Skeleton rows={6} />
  const start = may && <Button icon="play" onClick={() => setQuery({ do: 'reproduce' })}>{r.start}</Button>
  return (
    <div class="stack" style={{ gap: '12px' }}>
      {found.length > 0 && start && <div>{start}</div>}
      {found.length === 0 && <div class="card"><Empty title={r.none}><p>{r.noneText}</p>{start}</Empty></div>}
      {found.map((one) => <Compared key={one.dag_run_id} one={one} isOwn={one.dag_run_id === run.dag_run_id} />)}
      {asking && <Start run={run} onClose={() => setQuery({ do: null })} onDone={() => void live.refresh()} />}
    </div>
  )
}

function Compared({ one, isOwn }: { one: Reproduction; isOwn: boolean }) {
  const other = isOwn ? one.original_run_id : one.dag_run_id
  const columns: Column<Table>[] = [
    { key: 'table', head: r.table, class: 'wide', cell: (row) => <a class="mono" href={href(to('tables', row.table))}>{row.table}</a> },
    { key: 'result', head: r.result, cell: (row) => <span class={`tag ${row.is_equal ? 'on' : 'bad'}`}>{row.is_equal ? r.verdicts.equal : r.verdicts.different}</span> },
    { key: 'schema', head: r.schema, class: 'named', cell: (row) => <Equal is={row.schema_equal} /> },
    { key: 'original', head: r.originalRows, right: true, cell: (row) => <Rows of={row.original_rows} /> },
    { key: 'rows', head: r.rows, right: true, cell: (row) => <Rows of={row.reproduced_rows} differs={row.original_rows !== row.reproduced_rows} /> },
    { key: 'checksum', head: r.checksum, class: 'named', cell: (row) => <span title={row.original_checksum ? `${row.original_checksum}\n${row.reproduced_checksum}` : undefined}><Equal is={row.checksum_equal} /></span> },
    { key: 'note', head: r.differs, class: 'wide named', cell: (row) => <span class="soft">{[row.columns_that_differ.join(', '), row.note].filter(Boolean).join('; ') || '–'}</span> },
  ]
  return (
    <section class="card" aria-label={other ?? one.dag_run_id}>
      <header class="wrap">
        <h3>{isOwn ? r.of : ''}{other ? <a class="link" href={href(to('dags', one.dag_id, 'runs', other))} title={other}>{runName(other)}</a> : r.deleted}</h3>
        <span class={`tag ${TAGS[one.verdict]}`}>{r.verdicts[one.verdict]}</span>
        {!isOwn && <State state={one.state} />}
        <span class="end small dim"><Time at={one.end_date ?? one.start_date} /></span>
      </header>
      <div class="pad stack">
        {one.reason && <p>{one.reason}</p>}
        {one.verdict === 'pending' && <p class="soft">{r.pending}</p>}
        {one.verdict === 'comparing' && <p class="soft" role="status">{r.comparing}</p>}
        {one.verdict === 'different' && one.original_state && one.original_state !== one.state && <p>{r.states(one.original_state, one.state)}</p>}
        {one.ignored.length > 0 && <p class="small soft">{r.ignored(one.ignored.join(', '))}</p>}
        {one.namespace && <p class="small soft">{one.keep ? r.kept : r.dropped} <span class="mono">{one.namespace}<Copy text={one.namespace} /></span></p>}
      </div>
      {one.tables.length > 0 && <List label={r.tables} columns={columns} rows={one.tables} rowKey={(row) => row.table} empty={null} />}
      {one.inputs.length > 0 && (
        <div class="pad">
          <p>{r.inputs}</p>
          <ul>{one.inputs.map((input) => <li key={`${input.task_id} ${input.map_index} ${input.table}`}>{r.input(`${input.task_id}${input.map_index >= 0 ? ` [${input.map_index}]` : ''}`, input.table, input.original_publication, input.reproduced_publication)}</li>)}</ul>
        </div>
      )}
    </section>
  )
}

const Equal = ({ is }: { is: boolean }) => (is ? <span class="soft">{r.same}</span> : <span class="wrong">{r.other}</span>)
const Rows = ({ of, differs = false }: { of: number | null; differs?: boolean }) => (of === null ? <span class="dim">–</span> : <span class={`num ${differs ? 'wrong' : ''}`}>{count(of)}</span>)

/** The dialog says what the reproduction would do, before it is started. */
function Start({ run, onClose, onDone }: { run: DagRun; onClose: () => void; onDone: () => void }) {
  const [keep, setKeep] = useState(false)
  const [consent, setConsent] = useState(false)
  const [columns, setColumns] = useState('')
  const [wrong, setWrong] = useState<string | null>(null)
  const [busy, setBusy] = useState(false)
  const path = { dag_id: run.dag_id, dag_run_id: run.dag_run_id }
  const post = (body: components['schemas']['ReproductionBody']) => ok(api.POST('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/reproductions', { params: { path }, body }))
  const live = useLive(`reproduce ${run.dag_id} ${run.dag_run_id}`, async () => {
    const answer = await post({ dry_run: true, keep: false, ignore: [], despite_effects: false })
    return 'effects' in answer ? answer : null
  }, { every: 0 })
  const plan = live.data.value
  const submit = async () => {
    setBusy(true)
    try {
      const made = await post({ dry_run: false, keep, ignore: columns.split(/[\s,]+/).filter(Boolean), despite_effects: consent })
      if ('dag_run_id' in made) toast(t.trigger.started(runName(made.dag_run_id)), { link: { text: t.trigger.open, href: href(to('dags', run.dag_id, 'runs', made.dag_run_id)) } })
      nudge('runs', `dag:${run.dag_id}`)
      onDone()
      onClose()
    } catch (error) {
      setWrong(message(error))
      setBusy(false)
    }
  }
  return (
    <Dialog
      title={`${r.start}: ${runName(run.dag_run_id)}`}
      wrong={wrong ?? live.error.value}
      onClose={onClose}
      onSubmit={() => void submit()}
      footer={
        <>
          <Button onClick={onClose}>{t.cancel}</Button>
          <Button kind="first" type="submit" disabled={busy || !plan || (plan.effects.length > 0 && !consent)}>{r.submit}</Button>
        </>
      }
    >
      {!plan ? !live.error.value && <Skeleton rows={3} /> : (
        <>
          <p class="request-body">{r.text(plan.version_number)}</p>
          {plan.moved && <Note kind="warn">{r.moved}</Note>}
          {plan.effects.length > 0 && (
            <Note kind="warn">
              <p>{r.effects}</p>
              <ul>{plan.effects.map((one) => <li key={one}>{one}</li>)}</ul>
              <Check on={consent} onChange={setConsent}>{r.consent}</Check>
            </Note>
          )}
          <Field label={r.ignore} hint={r.ignoreHint}>
            <input class="input" value={columns} spellcheck={false} onInput={(event) => setColumns(event.currentTarget.value)} />
          </Field>
          <Check on={keep} onChange={setKeep}>{r.keep}</Check>
        </>
      )}
    </Dialog>
  )
}

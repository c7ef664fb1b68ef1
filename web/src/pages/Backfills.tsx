/** Backfills with their progress, and the form that starts one, with a dry run. */
import { useEffect, useState } from 'preact/hooks'
import { api, message, ok } from '../api/client'
import type { Backfill } from '../api/types'
import { day, duration, moment, momentOf, now, zoneName } from '../format'
import { useLive } from '../live/resource'
import { Button, Check, Empty, Field, Note, Segments, Time } from '../parts/basic'
import { Head } from '../parts/Head'
import { List, type Column } from '../parts/List'
import { attempt, confirm, Dialog, toast } from '../parts/overlay'
import { ViewOnly } from '../parts/ViewOnly'
import { href, query, setQuery, to } from '../shell/router'
import { mayAnywhere, mayChange } from '../shell/session'
import { t } from '../strings'
import { nudge } from '../live/changes'

const b = t.backfills
const SIZE = 50
/** In the address: a backfill of a DAG that the form asks for. No DAG has this ID. */
const CHOOSE = '~'

export default function Backfills() {
  const offset = Number(query.value.get('offset') ?? 0) || 0
  const started = query.value.get('new')
  const add = mayAnywhere('operator') && <Button kind="first" icon="plus" onClick={() => setQuery({ new: CHOOSE })}>{b.add}</Button>
  const live = useLive(`backfills ${offset}`, () => ok(api.GET('/api/v2/backfills', { params: { query: { limit: SIZE, offset, order_by: ['-id'] } } })), { on: ['runs'] })
  const page = live.data.value
  const act = async (one: Backfill, what: 'pause' | 'unpause' | 'cancel') => {
    if (what === 'cancel' && !(await confirm(`${b.cancel}: ${one.dag_id}`, b.cancelText, b.cancel))) return
    const path = { params: { path: { backfill_id: one.id } } }
    await attempt(() => ok(what === 'pause' ? api.PUT('/api/v2/backfills/{backfill_id}/pause', path) : what === 'unpause' ? api.PUT('/api/v2/backfills/{backfill_id}/unpause', path) : api.PUT('/api/v2/backfills/{backfill_id}/cancel', path)))
    await live.refresh()
  }
  const columns: Column<Backfill>[] = [
    { key: 'dag', head: b.dag, cell: (one) => <a href={href(to('dags', one.dag_id))}><strong>{one.dag_id}</strong></a> },
    { key: 'dates', head: b.dates, cell: (one) => <span class="num">{moment(one.from_date, false)} – {moment(one.to_date, false)}</span> },
    { key: 'progress', head: b.progress, cell: (one) => <Progress backfill={one} /> },
    { key: 'state', head: b.state, cell: (one) => (one.completed_at ? <span class="soft">{b.completed} <Time at={one.completed_at} /></span> : one.is_paused ? <span class="tag warn">{b.paused}</span> : <span class="tag on">{b.running}</span>) },
    { key: 'reprocess', head: b.reprocess, class: 'hide-m', cell: (one) => <span class="soft">{b.behaviors[one.reprocess_behavior] ?? one.reprocess_behavior}</span> },
    { key: 'created', head: b.created, class: 'hide-m', cell: (one) => <Time at={one.created_at} /> },
    {
      key: 'act', head: '', right: true,
      cell: (one) => mayChange(one.dag_id) && !one.completed_at && (
        <span class="row" style={{ justifyContent: 'flex-end', gap: 0 }}>
          <Button kind="plain" icon={one.is_paused ? 'play' : 'pause'} label={one.is_paused ? b.resume : b.pause} onClick={() => void act(one, one.is_paused ? 'unpause' : 'pause')} />
          <Button kind="plain" icon="close" label={b.cancel} onClick={() => void act(one, 'cancel')} />
        </span>
      ),
    },
  ]
  return (
    <>
      <Head title={b.title}>{add || <ViewOnly text={t.rights.lookAny} />}</Head>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      <List label={b.title} columns={columns} rows={page?.backfills} failed={live.error.value !== null} rowKey={(one) => String(one.id)} total={page?.total_entries} size={SIZE} empty={<Empty title={b.none}><p>{b.noneText}</p>{add}</Empty>} />
      {started && <New key={started} dagId={started === CHOOSE ? '' : started} onClose={() => setQuery({ new: null })} onDone={() => void live.refresh()} />}
    </>
  )
}

/** Runs that ended among those of the backfill, and how long the others may take. */
function Progress({ backfill }: { backfill: Backfill }) {
  const { waiting, queued, running, success, failed } = backfill.run_counts
  const done = success + failed
  const open = waiting + queued + running
  const share = (count: number) => `${(count / Math.max(1, done + open)) * 100}%`
  const age = (now.value - Date.parse(backfill.created_at)) / 1000
  return (
    <span class="row">
      <span class="use"><i style={{ width: share(success), background: 'var(--s-success)' }} /><i style={{ width: share(failed), background: 'var(--s-failed)' }} /></span>
      <a class="small num soft nowrap" href={href(`${to('dags', backfill.dag_id, 'runs')}?${new URLSearchParams({ type: 'backfill', from: day(backfill.from_date), until: day(backfill.to_date) })}`)}>{done} / {done + open}{open && done && !backfill.is_paused ? `, ${b.eta(duration((age / done) * open))}` : ''}</a>
    </span>
  )
}

/** The day so many days before today, in the zone of the pages. */
const dayBefore = (days: number) => day(Date.now() - days * 86_400_000)
/** Whole days until yesterday. */
const last = (days: number) => ({ from: `${dayBefore(days)}T00:00`, to: `${dayBefore(1)}T23:59` })
const RANGES = [['1', b.yesterday], ['7', b.week], ['30', b.month]] as const

/** Without a DAG, the form asks for one. */
function New({ dagId: given, onClose, onDone }: { dagId: string; onClose: () => void; onDone: () => void }) {
  const [dagId, choose] = useState(given)
  const [form, setForm] = useState({ ...last(7), active: '10', behavior: 'none', reverse: false })
  const dags = useLive(given ? null : 'dags to backfill', () => ok(api.GET('/api/v2/dags', { params: { query: { limit: 1000, order_by: ['dag_id'] } } })), { every: 0 }).data.value?.dags.filter((one) => one.is_backfillable).map((one) => one.dag_id)
  const [found, setFound] = useState<number | null>(null)
  const [first, setFirst] = useState<string[]>([])
  const [wrong, setWrong] = useState<string | null>(null)
  const [busy, setBusy] = useState(false)
  const body = { dag_id: dagId, from_date: momentOf(form.from) ?? form.from, to_date: momentOf(form.to) ?? form.to, max_active_runs: Number(form.active) || 1, reprocess_behavior: form.behavior as 'none' | 'failed' | 'completed', run_backwards: form.reverse }
  useEffect(() => {
    let current = true
    if (!dagId || (dags && !dags.includes(dagId))) {
      setFound(null)
      setWrong(null)
      return
    }
    const timer = setTimeout(() => {
      ok(api.POST('/api/v2/backfills/dry_run', { body })).then(
        (result) => {
          if (!current) return
          setFound(result.total_entries)
          setFirst(result.backfills.slice(0, 5).map((one) => moment(one.logical_date, false)))
          setWrong(null)
        },
        (error: unknown) => current && (setWrong(message(error)), setFound(null)),
      )
    }, 250)
    return () => {
      current = false
      clearTimeout(timer)
    }
  }, [JSON.stringify(form), dagId, dags === undefined])
  const submit = async () => {
    setBusy(true)
    try {
      await ok(api.POST('/api/v2/backfills', { body }))
      toast(b.started)
      nudge('runs')
      onDone()
      onClose()
    } catch (error) {
      setWrong(message(error))
      setBusy(false)
    }
  }
  const set = (name: keyof typeof form) => (event: { currentTarget: { value: string } }) => setForm({ ...form, [name]: event.currentTarget.value })
  return (
    <Dialog
      title={given ? `${t.dag.backfill}: ${given}` : b.add}
      onClose={onClose}
      onSubmit={() => void submit()}
      footer={<><Button onClick={onClose}>{t.cancel}</Button><Button kind="first" type="submit" disabled={!found || busy}>{b.submit}{found ? ` (${found})` : ''}</Button></>}
    >
      {!given && (
        <Field label={b.choose} required hint={b.chooseHint} wrong={dags && dagId && !dags.some((one) => one.includes(dagId)) ? b.noDag : null}>
          <input class="input" required list="dags-to-backfill" autocomplete="off" spellcheck={false} value={dagId} onInput={(event) => choose(event.currentTarget.value)} />
          <datalist id="dags-to-backfill">{dags?.map((one) => <option key={one} value={one} />)}</datalist>
        </Field>
      )}
      <Segments label={b.range} value={RANGES.find(([days]) => last(Number(days)).from === form.from && last(Number(days)).to === form.to)?.[0] ?? ''} options={RANGES} onChange={(days) => setForm({ ...form, ...last(Number(days)) })} />
      <div class="pairs">
        <Field label={`${b.from} (${zoneName()})`}><input class="input" type="datetime-local" required value={form.from} onInput={set('from')} /></Field>
        <Field label={`${b.until} (${zoneName()})`}><input class="input" type="datetime-local" required value={form.to} onInput={set('to')} /></Field>
        <Field label={b.active}><input class="input" {...{ type: 'number' as 'text' }} min={1} value={form.active} onInput={set('active')} /></Field>
        <Field label={b.reprocess}>
          <select class="select" value={form.behavior} onChange={set('behavior')}>{Object.entries(b.behaviors).map(([name, text]) => <option key={name} value={name}>{text}</option>)}</select>
        </Field>
      </div>
      <Check on={form.reverse} onChange={(reverse) => setForm({ ...form, reverse })}>{b.reverse}</Check>
      <div style={{ minHeight: '48px' }}>
        {wrong ? <Note kind="bad">{wrong}</Note> : found !== null && <><p><strong>{b.dry(found)}</strong></p><p class="small soft num">{first.join(', ')}{found > first.length ? ' …' : ''}</p></>}
      </div>
    </Dialog>
  )
}

/** Pools: their slots, what holds them, and what waits for them. */
import { useState } from 'preact/hooks'
import { api, changeIfSame, ok } from '../api/client'
import type { Pool } from '../api/types'
import { count, elapsed, duration } from '../format'
import { useLive } from '../live/resource'
import { Button, Note, Skeleton } from '../parts/basic'
import { Form, type Values } from '../parts/Form'
import { Head } from '../parts/Head'
import { attempt, confirm, Dialog } from '../parts/overlay'
import { Mark } from '../parts/State'
import { List, type Column } from '../parts/List'
import { CountLink } from '../parts/CountLink'
import { Use } from '../parts/Use'
import { ViewOnly } from '../parts/ViewOnly'
import { href, query } from '../shell/router'
import { may } from '../shell/session'
import { t } from '../strings'
import { taskHref } from './dag/TasksTab'
import { tasksHref } from './taskList'

const p = t.pools

export default function Pools() {
  const [edited, edit] = useState<Pool | 'new' | null>(null)
  const [line, showLine] = useState<string | null>(null)
  const order = query.value.get('order_by') ?? 'name'
  const live = useLive(`pools ${order}`, () => ok(api.GET('/api/v2/pools', { params: { query: { limit: 1000, order_by: [order] } } })), { on: ['runs'], every: 10_000, keep: true })
  const operator = may('operator')
  const remove = async (pool: Pool) => {
    if (!(await confirm(`${t.remove}: ${pool.name}`, p.deleteText, t.remove))) return
    await attempt(() => ok(api.DELETE('/api/v2/pools/{pool_name}', { params: { path: { pool_name: pool.name } } })))
    await live.refresh()
  }
  const save = async (values: Values) => {
    const body = { slots: Number(values['slots']), description: values['description'] || null, include_deferred: values['include_deferred'] === 'true' }
    if (edited === 'new') await ok(api.POST('/api/v2/pools', { body: { name: values['name']!, ...body } }))
    else if (edited) {
      const path = { pool_name: edited.name }
      await changeIfSame(edited, ['slots', 'description', 'include_deferred'], () => api.GET('/api/v2/pools/{pool_name}', { params: { path } }), (headers) => api.PATCH('/api/v2/pools/{pool_name}', { params: { path }, body: { pool: edited.name, ...body }, headers }))
    }
    await live.refresh()
  }
  const columns: Column<Pool>[] = [
    { key: 'name', head: p.name, order: 'name', class: 'wide', cell: (pool) => <><button type="button" class="as-link" onClick={() => showLine(pool.name)}>{pool.name}</button>{pool.description && <span class="small dim" style={{ display: 'block' }}>{pool.description}</span>}</> },
    { key: 'use', head: p.use, cell: (pool) => <Use pool={pool} /> },
    { key: 'slots', head: p.slots, order: 'slots', right: true, cell: (pool) => (pool.slots < 0 ? p.unlimited : count(pool.slots)) },
    { key: 'running', head: p.running, right: true, cell: (pool) => slots(pool, pool.running_slots, 'running') },
    { key: 'queued', head: p.queued, right: true, cell: (pool) => slots(pool, pool.queued_slots, 'queued') },
    { key: 'waiting', head: p.scheduled, right: true, cell: (pool) => slots(pool, pool.scheduled_slots, 'scheduled') },
    { key: 'deferred', head: p.deferred, right: true, class: 'hide-m', cell: (pool) => slots(pool, pool.deferred_slots, 'deferred') },
    { key: 'act', head: '', right: true, cell: (pool) => operator && <span class="row" style={{ justifyContent: 'flex-end', gap: 0 }}><Button kind="plain" icon="edit" label={`${t.edit}: ${pool.name}`} onClick={() => edit(pool)} /><Button kind="plain" icon="trash" label={`${t.remove}: ${pool.name}`} onClick={() => void remove(pool)} /></span> },
  ]
  const initial: Values = edited === 'new' || !edited ? { slots: '16', include_deferred: 'false' } : { name: edited.name, slots: String(edited.slots), description: edited.description ?? '', include_deferred: String(edited.include_deferred) }
  return (
    <>
      <Head title={p.title}>{!operator && <ViewOnly text={t.rights.lookWhole('operator')} />}{operator && <Button kind="first" icon="plus" onClick={() => edit('new')}>{p.add}</Button>}</Head>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      <List label={p.title} columns={columns} rows={live.data.value?.pools} failed={live.error.value !== null} rowKey={(pool) => pool.name} order={order} empty={null} />
      {edited && (
        <Form
          title={edited === 'new' ? p.add : `${p.edit}: ${edited.name}`}
          values={initial}
          save={save}
          onClose={() => edit(null)}
          inputs={[
            ...(edited === 'new' ? [{ name: 'name', label: p.name, required: true }] : []),
            { name: 'slots', label: p.slots, kind: 'number', hint: p.unlimitedHint, required: true },
            { name: 'description', label: p.description },
            { name: 'include_deferred', label: p.include, kind: 'check' },
          ]}
        />
      )}
      {line && <Line pool={line} onClose={() => showLine(null)} />}
    </>
  )
}

/** Slots of tasks in a state, as a link to these tasks. */
const slots = (pool: Pool, value: number, state: 'running' | 'queued' | 'scheduled' | 'deferred') => (
  <CountLink value={value} link={tasksHref({ state, pool: pool.name })} label={t.tasks.slotsOf(value, t.states[state], pool.name)} strong={state === 'scheduled'} />
)

/** What holds the slots of a pool, and what waits for them. */
function Line({ pool, onClose }: { pool: string; onClose: () => void }) {
  const live = useLive(`line ${pool}`, () => ok(api.GET('/api/v2/poolLines/{pool_name}', { params: { path: { pool_name: pool } } })), { on: ['runs'] })
  const data = live.data.value
  return (
    <Dialog wide title={`${p.name} ${pool}`} onClose={onClose}>
      {!data ? live.error.value ? <Note kind="bad">{live.error.value}</Note> : <Skeleton rows={5} /> : (
        <div class="two">
          {([[p.holders(data.used, data.slots), data.holders], [p.line(data.waiting_count), data.waiting]] as const).map(([title, rows]) => (
            <section key={title} class="card">
              <header><h3>{title}</h3></header>
              <ul class="rows">
                {rows.length === 0 && <li class="soft">{t.none}</li>}
                {rows.slice(0, 50).map((ti, at) => (
                  <li key={at}>
                    <Mark state={ti.state} />
                    <a class="grow clip" href={href(taskHref(ti))} title={ti.dag_run_id}><strong>{ti.dag_id}</strong> {ti.task_id}{ti.map_index >= 0 ? ` [${ti.map_index}]` : ''}</a>
                    <span class="small num dim">{duration(elapsed(ti.start_date ?? ti.queued_when ?? ti.scheduled_when, null))}</span>
                  </li>
                ))}
              </ul>
            </section>
          ))}
        </div>
      )}
    </Dialog>
  )
}

/** Connections. Passwords and secret extra fields are never sent to a page. */
import { useState } from 'preact/hooks'
import { api, message, ok } from '../api/client'
import type { Connection } from '../api/types'
import { useLive } from '../live/resource'
import { Button, Empty, Note, Search } from '../parts/basic'
import { NothingFits } from '../parts/NextStep'
import { Head } from '../parts/Head'
import { List, type Column } from '../parts/List'
import { attempt, confirm, toast } from '../parts/overlay'
import { ViewOnly } from '../parts/ViewOnly'
import { query, setQuery } from '../shell/router'
import { may } from '../shell/session'
import { t } from '../strings'
import { ConnectionForm } from './ConnectionForm'
import { testConnection } from './connectionTest'
import { PRESETS } from './connectionTypes'

const c = t.connections
const SIZE = 50

export default function Connections() {
  const [edited, edit] = useState<Connection | 'new' | null>(null)
  const [testing, setTesting] = useState<string | null>(null)
  const order = query.value.get('order_by') ?? 'connection_id'
  const offset = Number(query.value.get('offset') ?? 0) || 0
  const name = query.value.get('q')
  const live = useLive(`connections ${name} ${order} ${offset}`, () => ok(api.GET('/api/v2/connections', { params: { query: { limit: SIZE, offset, order_by: [order], ...(name ? { connection_id_pattern: `%${name}%` } : {}) } } })), { keep: true })
  const page = live.data.value
  const admin = may('admin')
  const remove = async (one: Connection) => {
    if (!(await confirm(`${t.remove}: ${one.connection_id}`, c.deleteText, t.remove))) return
    await attempt(() => ok(api.DELETE('/api/v2/connections/{connection_id}', { params: { path: { connection_id: one.connection_id } } })))
    await live.refresh()
  }
  const test = async (id: string) => {
    setTesting(id)
    const found = await testConnection(id, null).catch((error: unknown) => ({ ok: false, text: message(error) }))
    setTesting(null)
    toast(found.text, { bad: !found.ok })
  }
  const columns: Column<Connection>[] = [
    { key: 'id', head: c.id, order: 'connection_id', class: 'wide', cell: (one) => <span class="mono">{one.connection_id}</span> },
    { key: 'type', head: c.type, order: 'conn_type', cell: (one) => PRESETS[one.conn_type]?.name ?? one.conn_type },
    { key: 'host', head: c.host, class: 'wide', cell: (one) => <span class="soft">{one.host}{one.port ? `:${one.port}` : ''}</span> },
    { key: 'login', head: c.login, class: 'hide-s', cell: (one) => <span class="soft">{one.login}</span> },
    { key: 'description', head: c.description, class: 'wide hide-m', cell: (one) => <span class="soft">{one.description}</span> },
    { key: 'act', head: '', right: true, cell: (one) => admin && <span class="row" style={{ justifyContent: 'flex-end', gap: 0 }}><Button kind="plain" label={c.testTitle(one.connection_id)} disabled={testing !== null} onClick={() => void test(one.connection_id)}>{testing === one.connection_id ? c.testing : c.test}</Button><Button kind="plain" icon="edit" label={`${t.edit}: ${one.connection_id}`} onClick={() => edit(one)} /><Button kind="plain" icon="trash" label={`${t.remove}: ${one.connection_id}`} onClick={() => void remove(one)} /></span> },
  ]
  return (
    <>
      <Head title={c.title}>{!admin && <ViewOnly text={t.rights.lookWhole('admin')} />}{admin && <Button kind="first" icon="plus" onClick={() => edit('new')}>{c.add}</Button>}</Head>
      <div class="filters"><Search value={name ?? ''} placeholder={c.id} onInput={(q) => setQuery({ q, offset: null })} /></div>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      <List label={c.title} columns={columns} rows={page?.connections} failed={live.error.value !== null} rowKey={(one) => one.connection_id} total={page?.total_entries} size={SIZE} order={order} empty={name ? <NothingFits filters={['q']} /> : <Empty title={c.none}><p>{c.noneText}</p>{admin && <Button kind="first" icon="plus" onClick={() => edit('new')}>{c.add}</Button>}</Empty>} />
      {edited && <ConnectionForm of={edited === 'new' ? null : edited} onClose={() => edit(null)} onDone={() => live.refresh()} />}
    </>
  )
}

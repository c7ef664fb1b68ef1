/** Variables. Values whose names sound secret are masked by the server. */
import { useState } from 'preact/hooks'
import { api, changeIfSame, ok } from '../api/client'
import type { Variable } from '../api/types'
import { useLive } from '../live/resource'
import { Button, Empty, Note, Search } from '../parts/basic'
import { NothingFits } from '../parts/NextStep'
import { Form } from '../parts/Form'
import { Head } from '../parts/Head'
import { Bulk, List, NOTHING, type Column, type Selection } from '../parts/List'
import { attempt, confirm } from '../parts/overlay'
import { ViewOnly } from '../parts/ViewOnly'
import { query, setQuery } from '../shell/router'
import { may } from '../shell/session'
import { t } from '../strings'

const v = t.variables
const SIZE = 50

export default function Variables() {
  const [edited, edit] = useState<Variable | 'new' | null>(null)
  const [selection, select] = useState<Selection>(NOTHING)
  const order = query.value.get('order_by') ?? 'key'
  const offset = Number(query.value.get('offset') ?? 0) || 0
  const name = query.value.get('q')
  const pattern = name ? { variable_key_pattern: `%${name}%` } : {}
  const list = (limit: number, from: number) => ok(api.GET('/api/v2/variables', { params: { query: { limit, offset: from, order_by: [order], ...pattern } } }))
  const live = useLive(`variables ${name} ${order} ${offset}`, () => list(SIZE, offset), { keep: true })
  const page = live.data.value
  const admin = may('admin')
  const remove = async (keys: string[]) => {
    if (!(await confirm(`${t.remove}: ${keys.length === 1 ? keys[0] : keys.length}`, v.deleteText, t.remove))) return
    await attempt(() => ok(api.PATCH('/api/v2/variables', { body: { actions: [{ action: 'delete', entities: keys, action_on_non_existence: 'skip' }] } as never })))
    select(NOTHING)
    await live.refresh()
  }
  const removeSelected = async () => {
    const keys = selection.all ? (await list(1000, 0)).variables.map((one) => one.key) : [...selection.keys]
    await remove(keys)
  }
  const columns: Column<Variable>[] = [
    { key: 'key', head: v.key, order: 'key', class: 'wide', cell: (one) => <span class="mono">{one.key}</span> },
    { key: 'value', head: v.value, class: 'wide', cell: (one) => <span class="mono soft clip" style={{ display: 'block', maxWidth: '420px' }}>{one.value}</span> },
    { key: 'description', head: v.description, class: 'wide hide-s', cell: (one) => <span class="soft">{one.description}</span> },
    { key: 'act', head: '', right: true, cell: (one) => admin && <span class="row" style={{ justifyContent: 'flex-end', gap: 0 }}><Button kind="plain" icon="edit" label={`${t.edit}: ${one.key}`} onClick={() => edit(one)} /><Button kind="plain" icon="trash" label={`${t.remove}: ${one.key}`} onClick={() => void remove([one.key])} /></span> },
  ]
  return (
    <>
      <Head title={v.title}>{!admin && <ViewOnly text={t.rights.lookWhole('admin')} />}{admin && <Button kind="first" icon="plus" onClick={() => edit('new')}>{v.add}</Button>}</Head>
      <div class="filters"><Search value={name ?? ''} placeholder={v.key} onInput={(q) => setQuery({ q, offset: null })} /></div>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      {admin && <Bulk selection={selection} total={page?.total_entries} onSelect={select}><Button icon="trash" onClick={() => void removeSelected()}>{t.remove}</Button></Bulk>}
      <List label={v.title} columns={columns} rows={page?.variables} failed={live.error.value !== null} rowKey={(one) => one.key} total={page?.total_entries} size={SIZE} order={order} empty={name ? <NothingFits filters={['q']} /> : <Empty title={v.none}><p>{v.noneText}</p>{admin && <Button kind="first" icon="plus" onClick={() => edit('new')}>{v.add}</Button>}</Empty>} {...(admin ? { selection, onSelect: select } : {})} />
      {edited && (
        <Form
          title={edited === 'new' ? v.add : `${v.edit}: ${edited.key}`}
          values={edited === 'new' ? {} : { key: edited.key, ...(edited.value === '***' ? {} : { value: edited.value ?? '' }), description: edited.description ?? '' }}
          onClose={() => edit(null)}
          save={async (values) => {
            const body = { key: values['key']!, value: values['value'] ?? '', description: values['description'] || null }
            if (edited === 'new') await ok(api.POST('/api/v2/variables', { body }))
            else {
              const mask = values['value'] === undefined ? ['description'] : ['value', 'description']
              const path = { variable_key: edited.key }
              await changeIfSame(edited, ['value', 'description'], () => api.GET('/api/v2/variables/{variable_key}', { params: { path } }), (headers) => api.PATCH('/api/v2/variables/{variable_key}', { params: { path, query: { update_mask: mask } }, body, headers }))
            }
            await live.refresh()
          }}
          inputs={[
            { name: 'key', label: v.key, required: true, fixed: edited !== 'new' },
            { name: 'value', label: v.value, kind: edited !== 'new' && edited.value === '***' ? 'secret' : 'area' },
            { name: 'description', label: v.description },
          ]}
        />
      )}
    </>
  )
}

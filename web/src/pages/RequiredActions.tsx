/** Tasks that wait for the answer of a person, the answers that were given, and the dialog that answers. */
import { useState } from 'preact/hooks'
import { seed, useLive } from '../live/resource'
import { Button, Empty, Note, Segments, Time } from '../parts/basic'
import { Head } from '../parts/Head'
import { List, type Column } from '../parts/List'
import { Mark } from '../parts/State'
import { href, query, setQuery, to } from '../shell/router'
import { t } from '../strings'
import { taskHref } from './dag/TasksTab'
import { Respond } from './Respond'
import { requests, WAITING, type Asked, type Kind } from './requests'

const a = t.actions
const SIZE = 50

export default function RequiredActions() {
  const [opened, open] = useState<Asked | null>(null)
  const kind: Kind = query.value.get('show') === 'answered' ? 'answered' : 'waiting'
  const offset = Number(query.value.get('offset') ?? 0) || 0
  const live = useLive(`requests ${kind} ${offset}`, async () => {
    const page = await requests(kind, SIZE, offset)
    if (kind === 'waiting') seed(WAITING, page.total_entries)
    return page
  }, { on: ['runs'], every: 10_000 })
  const columns: Column<Asked>[] = [
    { key: 'subject', head: a.subject, class: 'wide', cell: (one) => <button type="button" class="as-link" onClick={() => open(one)}>{one.subject}</button> },
    { key: 'dag', head: a.dag, cell: (one) => <a href={href(to('dags', one.task_instance.dag_id))}>{one.task_instance.dag_id}</a> },
    { key: 'task', head: a.task, class: 'wide', cell: (one) => <span class="row"><Mark state={one.task_instance.state} /><a href={href(taskHref(one.task_instance))} title={one.task_instance.dag_run_id}>{one.task_instance.task_id}{one.task_instance.map_index >= 0 ? ` [${one.task_instance.map_index}]` : ''}</a></span> },
    { key: 'since', head: a.since, class: 'named', cell: (one) => <Time at={one.created_at} /> },
    ...(kind === 'waiting'
      ? [
          { key: 'assigned', head: a.assigned, class: 'hide-m', cell: (one: Asked) => <span class="soft">{(one.assigned_users ?? []).map((user) => user.name).join(', ') || a.anyone}</span> },
          { key: 'act', head: '', right: true, cell: (one: Asked) => <Button onClick={() => open(one)}>{a.respond}</Button> },
        ]
      : [
          { key: 'answer', head: a.answer, class: 'wide named', cell: (one: Asked) => <strong>{one.chosen_options?.join(', ')}</strong> },
          { key: 'by', head: a.by, class: 'named', cell: (one: Asked) => <span class="soft">{one.responded_by_user?.name ?? '–'} <Time at={one.responded_at} /></span> },
        ]),
  ]
  const page = live.data.value
  return (
    <>
      <Head title={a.title} />
      <div class="filters">
        <Segments label={a.show} value={kind} options={[['waiting', a.waiting], ['answered', a.answered]]} onChange={(value) => setQuery({ show: value === 'waiting' ? null : value, offset: null })} />
      </div>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      <List label={a.title} columns={columns} rows={page?.hitl_details} failed={live.error.value !== null} rowKey={(one) => `${one.task_instance.id} ${one.created_at}`} rowHref={(one) => taskHref(one.task_instance)} total={page?.total_entries} size={SIZE}
        empty={kind === 'waiting' ? <Empty title={a.none}><p>{a.noneText}</p></Empty> : <Empty title={a.noneAnswered} />} />
      {opened && <Respond asked={opened} onClose={() => open(null)} onDone={() => void live.refresh()} />}
    </>
  )
}

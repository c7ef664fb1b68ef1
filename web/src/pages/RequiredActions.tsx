/** Tasks that wait for the answer of a person, the answers that were given, and the dialog that answers. */
import { useState } from 'preact/hooks'
import { seed, useLive } from '../live/resource'
import { message } from '../api/client'
import { minute, runName } from '../format'
import { nudge } from '../live/changes'
import { Button, Empty, Note, Segments, Time } from '../parts/basic'
import { Example } from '../parts/NextStep'
import { Head } from '../parts/Head'
import { Bulk, List, NOTHING, type Column, type Selection } from '../parts/List'
import { confirm, toast } from '../parts/overlay'
import { Mark } from '../parts/State'
import { ViewOnly } from '../parts/ViewOnly'
import { href, query, setQuery, to } from '../shell/router'
import { mayAnywhere } from '../shell/session'
import { t } from '../strings'
import { taskHref } from './dag/TasksTab'
import { QUESTION } from './example'
import { Respond } from './Respond'
import { answer, answers, requests, WAITING, type Asked, type Kind } from './requests'

const a = t.actions
const SIZE = 50
/** Answers that a row has as buttons. */
const MOST_BUTTONS = 3
/** Requests that the confirmation of an answer names. */
const MOST_SUBJECTS = 10
const key = (one: Asked) => `${one.task_instance.id} ${one.created_at}`

export default function RequiredActions() {
  const [opened, open] = useState<Asked | null>(null)
  const kind: Kind = query.value.get('show') === 'answered' ? 'answered' : 'waiting'
  const offset = Number(query.value.get('offset') ?? 0) || 0
  const live = useLive(`requests ${kind} ${offset}`, async () => {
    const page = await requests(kind, SIZE, offset)
    if (kind === 'waiting') seed(WAITING, page.total_entries)
    return page
  }, { on: ['runs'], every: 10_000 })
  const [selection, select] = useState<Selection>(NOTHING)
  const chosen = live.data.value?.hitl_details.filter((one) => selection.keys.has(key(one))) ?? []
  const shared = chosen.length ? answers(chosen[0]!).filter((option) => chosen.every((one) => answers(one).includes(option))) : []
  const give = async (asked: readonly Asked[], option: string) => {
    // What is answered in place is read here: all of one request, and the subjects of several.
    const shown = asked.length === 1 ? [asked[0]!.subject, asked[0]!.body] : asked.slice(0, MOST_SUBJECTS).map((one) => `${one.subject} (${one.task_instance.dag_id}, ${runName(one.task_instance.dag_run_id)})`)
    const more = asked.length > MOST_SUBJECTS ? t.task.andMore(asked.length - MOST_SUBJECTS) : null
    const text = [...shown, more, '', a.sureText(option, asked.length)].filter((line) => line !== null).join('\n')
    if (!(await confirm(a.sure, text, a.send, 'first'))) return
    const errors: string[] = []
    for (const one of asked) await answer(one, [option], {}).catch((error: unknown) => errors.push(message(error)))
    if (asked.length > errors.length) toast(asked.length === 1 ? a.sent : a.sentMany(asked.length - errors.length))
    if (errors.length) toast(errors[0]!, { bad: true })
    select(NOTHING)
    nudge('runs')
    await live.refresh()
  }
  // Most requests have no deadline, and all operators may answer them: a column that says nothing leaves its room to the buttons.
  const some = (has: (one: Asked) => unknown) => live.data.value?.hitl_details.some(has) ?? false
  const columns: Column<Asked>[] = [
    { key: 'subject', head: a.subject, class: 'wide', cell: (one) => <><button type="button" class="as-link" onClick={() => open(one)}>{one.subject}</button>{one.body && <span class="run-note small soft" title={one.body}>{one.body}</span>}</> },
    { key: 'dag', head: a.dag, cell: (one) => <><a href={href(to('dags', one.task_instance.dag_id))}>{one.task_instance.dag_id}</a><a class="run-note small soft" href={href(to('dags', one.task_instance.dag_id, 'runs', one.task_instance.dag_run_id))} title={one.task_instance.dag_run_id}>{runName(one.task_instance.dag_run_id)}</a></> },
    { key: 'task', head: a.task, class: 'wide', cell: (one) => <span class="row"><Mark state={one.task_instance.state} /><a href={href(taskHref(one.task_instance))} title={one.task_instance.dag_run_id}>{one.task_instance.task_id}{one.task_instance.map_index >= 0 ? ` [${one.task_instance.map_index}]` : ''}</a></span> },
    { key: 'since', head: a.since, class: 'named', cell: (one) => <Time at={one.created_at} /> },
    ...(kind === 'waiting'
      ? [
          ...(some((one) => one.respond_by) ? [{ key: 'deadline', head: a.deadline, class: 'named', cell: (one: Asked) => one.respond_by && <span class={Date.parse(one.respond_by) - minute.value < 3_600_000 ? 'wrong' : ''}><Time at={one.respond_by} /></span> }] : []),
          ...(some((one) => one.defaults?.length) ? [{ key: 'default', head: a.default, class: 'hide-m', cell: (one: Asked) => <span class="soft">{one.defaults?.join(', ') ?? ''}</span> }] : []),
          ...(some((one) => one.assigned_users?.length) ? [{ key: 'assigned', head: a.assigned, class: 'hide-m', cell: (one: Asked) => <span class="soft">{(one.assigned_users ?? []).map((user) => user.name).join(', ') || a.anyone}</span> }] : []),
          { key: 'act', head: '', right: true, cell: (one: Asked) => <span class="answers">{(answers(one).length <= MOST_BUTTONS ? answers(one) : []).map((option) => <Button key={option} label={`${option}: ${one.subject}`} onClick={() => void give([one], option)}>{option}</Button>)}<Button kind="plain" onClick={() => open(one)}>{a.respond}</Button></span> },
        ]
      : [
          { key: 'answer', head: a.answer, class: 'wide named', cell: (one: Asked) => <strong>{one.chosen_options?.join(', ')}</strong> },
          { key: 'by', head: a.by, class: 'named', cell: (one: Asked) => <span class="soft">{one.responded_by_user?.name ?? '–'} <Time at={one.responded_at} /></span> },
        ]),
  ]
  const page = live.data.value
  return (
    <>
      <Head title={a.title}>{!mayAnywhere('operator') && <ViewOnly text={t.rights.lookAny} />}</Head>
      <div class="filters">
        <Segments label={a.show} value={kind} options={[['waiting', a.waiting], ['answered', a.answered]]} onChange={(value) => setQuery({ show: value === 'waiting' ? null : value, offset: null })} />
      </div>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      {kind === 'waiting' && (
        <Bulk selection={selection} total={null} onSelect={select}>
          {shared.length ? shared.map((option) => <Button key={option} onClick={() => void give(chosen, option)}>{`${option} (${chosen.length})`}</Button>) : <span class="small">{a.noShared}</span>}
        </Bulk>
      )}
      <List label={a.title} columns={columns} rows={page?.hitl_details} failed={live.error.value !== null} rowKey={key} {...(kind === 'waiting' && mayAnywhere('operator') ? { selection, onSelect: select } : {})} rowHref={(one) => taskHref(one.task_instance)} total={page?.total_entries} size={SIZE}
        empty={kind === 'waiting' ? <Empty title={a.none}><p>{a.noneText}</p><Example text={QUESTION} /></Empty> : <Empty title={a.noneAnswered} />} />
      {opened && <Respond asked={opened} onClose={() => open(null)} onDone={() => void live.refresh()} />}
    </>
  )
}

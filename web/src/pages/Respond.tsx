/** The dialog that shows what a task asks, and answers it after a confirmation. */
import { useMemo, useState } from 'preact/hooks'
import { message } from '../api/client'
import { moment, relative } from '../format'
import { nudge } from '../live/changes'
import { Button, Check, Note } from '../parts/basic'
import { confirm, Dialog, toast } from '../parts/overlay'
import { conf, fields, shown, type ParamSpec } from '../parts/params'
import { ParamInput } from '../parts/Trigger'
import { href } from '../shell/router'
import { t } from '../strings'
import { taskHref } from './dag/TasksTab'
import { answer, mayAnswer, type Asked } from './requests'

const a = t.actions

export function Respond({ asked, onClose, onDone }: { asked: Asked; onClose: () => void; onDone: () => void }) {
  const params = asked.params as Record<string, ParamSpec>
  const all = useMemo(() => fields(params), [asked])
  const given = (asked.response_received && asked.params_input) || {}
  const [texts, setTexts] = useState<Record<string, string>>(() => Object.fromEntries(all.map((field) => [field.name, shown(field, field.name in given ? given[field.name] : params[field.name]?.value)])))
  const [chosen, choose] = useState<readonly string[]>(asked.chosen_options ?? asked.defaults ?? (asked.options.length === 1 ? asked.options : []))
  const [wrong, setWrong] = useState<string | null>(null)
  const [tried, setTried] = useState(false)
  const [busy, setBusy] = useState(false)
  const names = (asked.assigned_users ?? []).map((user) => user.name)
  const isOpen = !asked.response_received && mayAnswer(asked)
  // All values, also those that are as the task proposed them: the answer shows what the person saw.
  const made = conf(all, texts, {})
  const ti = asked.task_instance
  const pick = (option: string, on: boolean) => choose(asked.multiple ? asked.options.filter((one) => (one === option ? on : chosen.includes(one))) : [option])
  const submit = async () => {
    if (!chosen.length) return setWrong(a.choose)
    setTried(true)
    if (Object.keys(made.wrong).length) return setWrong(t.trigger.fix(Object.keys(made.wrong).length))
    setWrong(null)
    if (!(await confirm(a.sure, a.sureText(chosen.join(', '), 1), a.send, 'first'))) return
    setBusy(true)
    try {
      await answer(asked, chosen, made.conf)
      toast(a.sent)
      nudge('runs', `dag:${ti.dag_id}`)
      onDone()
      onClose()
    } catch (error) {
      setWrong(message(error))
      setBusy(false)
    }
  }
  return (
    <Dialog
      title={asked.subject}
      wrong={wrong}
      onClose={onClose}
      onSubmit={() => void submit()}
      footer={<><Button onClick={onClose}>{isOpen ? t.cancel : t.close}</Button>{isOpen && <Button kind="first" type="submit" disabled={busy}>{a.respond}</Button>}</>}
    >
      <p class="small soft"><a class="link" href={href(taskHref(ti))} onClick={onClose}>{ti.dag_id} / {ti.task_id}{ti.map_index >= 0 ? ` [${ti.map_index}]` : ''}</a>, {moment(asked.created_at, false)}</p>
      {asked.respond_by && !asked.response_received && <Note kind="warn">{a.respondBy(relative(asked.respond_by), moment(asked.respond_by, false), asked.defaults)}</Note>}
      {asked.body && <p class="request-body">{asked.body}</p>}
      {!asked.response_received && names.length > 0 && !isOpen && <Note kind="warn">{a.onlyFor(names.join(', '))}</Note>}
      <fieldset class="scope" disabled={!isOpen}>
        <legend class="small dim">{asked.multiple ? a.optionsMany : a.options}</legend>
        {asked.options.map((option) => asked.multiple
          ? <Check key={option} on={chosen.includes(option)} onChange={(on) => pick(option, on)}>{option}</Check>
          : <label key={option} class="check"><input type="radio" name="option" checked={chosen.includes(option)} onChange={() => pick(option, true)} />{option}</label>)}
      </fieldset>
      {all.length > 0 && (
        <fieldset class="scope one" disabled={!isOpen}>
          <legend class="small dim">{a.given}</legend>
          {all.map((field) => <ParamInput key={field.name} field={field} text={texts[field.name] ?? ''} wrong={made.wrong[field.name] ?? null} tried={tried} onInput={(text) => setTexts((old) => ({ ...old, [field.name]: text }))} />)}
        </fieldset>
      )}
      {asked.response_received && <p class="small soft">{a.by} {asked.responded_by_user?.name ?? '–'}, {moment(asked.responded_at)}</p>}
    </Dialog>
  )
}

/** The dialog that triggers a DAG: a form from its params, or JSON, with the configurations of recent runs. */
import { useEffect, useMemo, useState } from 'preact/hooks'
import { api, message, ok } from '../api/client'
import { moment, momentOf, runName, zoneName } from '../format'
import { nudge } from '../live/changes'
import { useLive } from '../live/resource'
import { href, to } from '../shell/router'
import { label } from '../states'
import { t } from '../strings'
import { Button, Check, Field, Note, Segments, Skeleton } from './basic'
import { Dialog, toast } from './overlay'
import { conf as confOf, fields, named, shown, type FieldOf, type ParamSpec } from './params'

export function Trigger({ dagId, onClose, onDone, initial }: { dagId: string; onClose: () => void; onDone?: (runId: string) => void; initial?: Record<string, unknown> | undefined }) {
  const path = { path: { dag_id: dagId } }
  const dag = useLive(`details ${dagId}`, () => ok(api.GET('/api/v2/dags/{dag_id}/details', { params: path })), { every: 0 })
  const recent = useLive(`confs ${dagId}`, () => ok(api.GET('/api/v2/dags/{dag_id}/dagRuns', { params: { ...path, query: { limit: 20, order_by: ['-id'], run_type: ['manual'] } } })), { every: 0 })
  const params = (dag.data.value?.params ?? {}) as Record<string, ParamSpec>
  const all = useMemo(() => fields(params), [dag.data.value])
  const [texts, setTexts] = useState<Record<string, string>>({})
  const [json, setJson] = useState('')
  const [asJson, setAsJson] = useState(false)
  const [more, setMore] = useState(false)
  const [id, setId] = useState('')
  const [date, setDate] = useState('')
  const [note, setNote] = useState('')
  const [unpause, setUnpause] = useState(false)
  const [wrong, setWrong] = useState<string | null>(null)
  const [tried, setTried] = useState(false)
  const [refused, refuse] = useState<Record<string, string>>({})
  const [busy, setBusy] = useState(false)

  const fill = (values: Record<string, unknown>) => {
    setTexts(Object.fromEntries(all.map((field) => [field.name, shown(field, field.name in values ? values[field.name] : params[field.name]?.value)])))
    setJson(Object.keys(values).length ? JSON.stringify(values, null, 2) : '')
    // A configuration with keys that the form lacks is only complete as JSON.
    if (Object.keys(values).some((name) => !(name in params))) setAsJson(true)
  }
  useEffect(() => {
    if (dag.data.value) fill(initial ?? {})
  }, [dag.data.value])

  const made = confOf(all, texts, params)
  const useJson = asJson || all.length === 0
  const submit = async () => {
    let conf = made.conf
    if (useJson) {
      try {
        conf = json.trim() ? (JSON.parse(json) as Record<string, unknown>) : {}
        if (typeof conf !== 'object' || conf === null || Array.isArray(conf)) throw new Error()
      } catch {
        setWrong(t.trigger.json)
        return
      }
    } else if (Object.keys(made.wrong).length) {
      setTried(true)
      setWrong(t.trigger.fix(Object.keys(made.wrong).length))
      return
    }
    setBusy(true)
    setWrong(null)
    try {
      if (unpause) await ok(api.PATCH('/api/v2/dags/{dag_id}', { params: path, body: { is_paused: false } }))
      const run = await ok(
        api.POST('/api/v2/dags/{dag_id}/dagRuns', {
          params: { ...path, header: { 'idempotency-key': key } },
          body: { conf, ...(id ? { dag_run_id: id } : {}), ...(date ? { logical_date: momentOf(date) ?? date } : {}), ...(note ? { note } : {}) },
        }),
      )
      toast(t.trigger.started(runName(run.dag_run_id)), { link: { text: t.trigger.open, href: href(to('dags', dagId, 'runs', run.dag_run_id)) } })
      nudge('runs', `dag:${dagId}`)
      onClose()
      onDone?.(run.dag_run_id)
    } catch (error) {
      const field = useJson ? null : named(all, message(error))
      refuse(field ? { [field]: message(error) } : {})
      setWrong(field ? t.trigger.fix(1) : message(error))
      setBusy(false)
    }
  }
  const input = (name: string, text: string) => {
    setTexts((old) => ({ ...old, [name]: text }))
    refuse({})
    setWrong(null)
  }
  // A second click, or a repeated request, makes no second run.
  const key = useMemo(() => crypto.getRandomValues(new Uint32Array(4)).join('-'), [])
  const past = (recent.data.value?.dag_runs ?? []).filter((run) => run.conf && Object.keys(run.conf).length > 0).slice(0, 8)

  return (
    <Dialog
      title={t.trigger.title(dagId)}
      wrong={wrong}
      onClose={onClose}
      onSubmit={() => void submit()}
      footer={
        <>
          <Button kind="plain" onClick={() => setMore(!more)} icon={more ? 'up' : 'down'}>{t.trigger.advanced}</Button>
          <span class="grow" />
          <Button onClick={onClose}>{t.cancel}</Button>
          <Button kind="first" type="submit" icon="play" disabled={busy || !dag.data.value}>{t.trigger.submit}</Button>
        </>
      }
    >
      {!dag.data.value ? (
        dag.error.value ? <Note kind="bad">{dag.error.value}</Note> : <Skeleton rows={3} />
      ) : (
        <>
          {dag.data.value.is_paused && (
            <Note kind="warn">
              {t.trigger.paused} <Check on={unpause} onChange={setUnpause}>{t.trigger.unpause}</Check>
            </Note>
          )}
          {(past.length > 0 || all.length > 0) && (
            <div class="row wrap">
              {all.length > 0 && (
                <Segments
                  label={t.trigger.conf}
                  value={useJson ? 'json' : 'form'}
                  options={[['form', t.trigger.asForm], ['json', t.trigger.asJson]]}
                  onChange={(value) => {
                    if (value === 'json') setJson(Object.keys(made.conf).length ? JSON.stringify(made.conf, null, 2) : '')
                    setAsJson(value === 'json')
                  }}
                />
              )}
              <span class="grow" />
              {past.length > 0 && (
                <select class="select" aria-label={t.trigger.recent} value="" style={{ maxWidth: '100%' }} onChange={(event) => { const run = past[Number(event.currentTarget.value)]; if (run) fill(run.conf ?? {}) }}>
                  <option value="">{t.trigger.recent}</option>
                  {past.map((run, at) => <option key={run.dag_run_id} value={at}>{moment(run.run_after, false)}, {label(run.state)}: {JSON.stringify(run.conf).slice(0, 60)}</option>)}
                </select>
              )}
            </div>
          )}
          {!useJson && all.some((field) => field.required) && <p class="small dim">{t.trigger.marked}</p>}
          {useJson ? (
            <Field label={t.trigger.conf} wrong={wrong === t.trigger.json ? wrong : null}>
              <textarea class="area" rows={7} spellcheck={false} placeholder="{}" aria-invalid={wrong === t.trigger.json} value={json} onInput={(event) => { setJson(event.currentTarget.value); setWrong(null) }} />
            </Field>
          ) : (
            all.map((field) => <ParamInput key={field.name} field={field} text={texts[field.name] ?? ''} wrong={refused[field.name] ?? made.wrong[field.name] ?? null} tried={tried || field.name in refused} onInput={(text) => input(field.name, text)} />)
          )}
          {more && (
            <>
              <Field label={t.trigger.id} hint={t.trigger.idHint}><input class="input" maxLength={250} value={id} onInput={(event) => setId(event.currentTarget.value)} /></Field>
              <Field label={`${t.trigger.date} (${zoneName()})`} hint={t.trigger.dateHint}><input class="input" type="datetime-local" value={date} onInput={(event) => setDate(event.currentTarget.value)} /></Field>
              <Field label={t.trigger.note}><input class="input" maxLength={1000} value={note} onInput={(event) => setNote(event.currentTarget.value)} /></Field>
            </>
          )}
        </>
      )}
    </Dialog>
  )
}

/** The control for one param. What is wrong is said once the field was left, or once the form was `tried`. */
export function ParamInput({ field, text, wrong: found, tried, onInput }: { field: FieldOf; text: string; wrong: string | null; tried: boolean; onInput: (text: string) => void }) {
  const [left, leave] = useState(false)
  const wrong = left || tried ? found : null
  const common = { 'aria-invalid': Boolean(wrong), 'aria-required': field.required, onBlur: () => leave(true), value: text, onInput: (event: { currentTarget: { value: string } }) => onInput(event.currentTarget.value) }
  const type = field.kind === 'number' ? 'number' : field.kind === 'date' ? 'date' : field.kind === 'datetime' ? 'datetime-local' : 'text'
  if (field.kind === 'boolean') {
    return (
      <div class="field">
        <Check on={text === 'true'} onChange={(on) => onInput(String(on))}>{field.title}</Check>
        {field.hint && <span class="hint">{field.hint}</span>}
      </div>
    )
  }
  return (
    <Field label={field.title} required={field.required} hint={field.hint} wrong={wrong}>
      {field.kind === 'choice' ? (
        <select class="select" aria-invalid={Boolean(wrong)} aria-required={field.required} value={text} onBlur={() => leave(true)} onChange={(event) => onInput(event.currentTarget.value)}>
          {(field.required || field.nullable) && <option value="">–</option>}
          {field.choices.map((choice) => <option key={JSON.stringify(choice)} value={JSON.stringify(choice)}>{String(choice)}</option>)}
        </select>
      ) : field.kind === 'json' || field.kind === 'area' ? (
        <textarea class="area" rows={4} spellcheck={false} {...common} />
      ) : (
        <input class="input" {...{ type: type as 'text' }} step={field.integer ? 1 : 'any'} {...common} />
      )}
    </Field>
  )
}

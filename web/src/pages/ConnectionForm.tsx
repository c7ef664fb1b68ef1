/** The form of a connection: the fields of its type, secrets that are kept or replaced, and how to test it. */
import { useState } from 'preact/hooks'
import { api, changeIfSame, message, ok } from '../api/client'
import type { Connection } from '../api/types'
import { Button, Field } from '../parts/basic'
import { Dialog } from '../parts/overlay'
import { Secret } from '../parts/Secret'
import { t } from '../strings'
import { TestConnection } from './connectionTest'
import { extraFields, extraOf, fromLine, PRESETS, type ExtraField } from './connectionTypes'

const c = t.connections
const FIELDS = ['conn_type', 'description', 'host', 'login', 'schema', 'port', 'password', 'extra'] as const
const TEXTS = ['host', 'port', 'schema', 'login'] as const

export function ConnectionForm({ of, onClose, onDone }: { of: Connection | null; onClose: () => void; onDone: () => Promise<unknown> }) {
  const [id, setId] = useState(of?.connection_id ?? '')
  const [type, setType] = useState(of?.conn_type ?? 'postgres')
  const [other, setOther] = useState(of !== null && !(of.conn_type in PRESETS))
  const [texts, setTexts] = useState<Record<string, string>>({ host: of?.host ?? '', port: of?.port ? String(of.port) : '', schema: of?.schema ?? '', login: of?.login ?? '', description: of?.description ?? '' })
  const [password, setPassword] = useState<{ text: string | null; removed: boolean }>({ text: of?.password ? null : '', removed: false })
  const preset = other ? undefined : PRESETS[type]
  const [fields, setFields] = useState<ExtraField[] | null>(() => extraFields(preset, of?.extra))
  const [whole, setWhole] = useState<string | null>(null)
  const [wrong, setWrong] = useState<string | null>(null)
  const [busy, setBusy] = useState(false)

  const choose = (next: string) => {
    setOther(next === '')
    if (next) setType(next)
    else if (type in PRESETS) setType('')
    const kept = (fields ?? []).filter((one) => one.stored !== undefined || one.text)
    const added = Object.keys(PRESETS[next]?.extra ?? {}).filter((key) => !kept.some((one) => one.key === key))
    if (fields) setFields([...kept, ...added.map((key) => ({ key, text: '', removed: false }))])
  }
  const changeField = (at: number, change: Partial<ExtraField>) => setFields((old) => old && old.map((one, index) => (index === at ? { ...one, ...change } : one)))
  /** Take the fields from a line ID=URI. */
  const fill = (line: ReturnType<typeof fromLine>) => {
    if (!line) return
    setId(line.id)
    setOther(!(line.type in PRESETS))
    setType(line.type)
    setTexts({ ...texts, ...line.texts })
    setPassword({ text: line.password, removed: false })
    setFields(extraFields(PRESETS[line.type], null)!.map((one) => ({ ...one, text: line.extra[one.key] ?? one.text })).concat(Object.entries(line.extra).filter(([key]) => !(key in (PRESETS[line.type]?.extra ?? {}))).map(([key, text]) => ({ key, text, removed: false }))))
  }
  const isSame = fields ? fields.every((one) => !one.removed && (one.stored !== undefined ? one.text === null : !one.text)) : whole === null
  const body = {
    connection_id: id, conn_type: type, description: texts['description'] || null, host: texts['host'] || null, login: texts['login'] || null,
    schema: texts['schema'] || null, port: texts['port'] ? Number(texts['port']) : null, password: password.removed ? null : password.text || null, extra: isSame ? null : fields ? extraOf(fields) : whole,
  }
  const mask = of ? FIELDS.filter((field) => (field === 'password' ? password.removed || Boolean(password.text) : field === 'extra' ? !isSame : (body[field] || null) !== (of[field] || null))) : []
  const save = async () => {
    if (!of && fromLine(id)) return fill(fromLine(id))
    setBusy(true)
    try {
      if (!of) await ok(api.POST('/api/v2/connections', { body }))
      else {
        const path = { connection_id: of.connection_id }
        if (mask.length)
          await changeIfSame(of, FIELDS, () => api.GET('/api/v2/connections/{connection_id}', { params: { path } }), (headers) => api.PATCH('/api/v2/connections/{connection_id}', { params: { path, query: { update_mask: [...mask] } }, body, headers }))
      }
      await onDone()
      onClose()
    } catch (error) {
      setWrong(message(error))
      setBusy(false)
    }
  }
  const label = (field: (typeof TEXTS)[number]) => (field === 'port' ? c.port : (preset?.[field] ?? c[field]))
  // A field that the type does not use is shown as long as it has a value.
  const isShown = (field: string) => Boolean(texts[field]) || (field === 'port' ? preset?.host !== null : preset?.[field as 'host'] !== null)
  return (
    <Dialog
      title={of ? `${c.edit}: ${of.connection_id}` : c.add}
      wrong={wrong}
      onClose={onClose}
      onSubmit={() => void save()}
      footer={<><Button onClick={onClose}>{t.cancel}</Button><Button kind="first" type="submit" disabled={busy}>{t.save}</Button></>}
    >
      <Field label={c.id} required {...(of ? {} : { hint: c.paste })}>
        <input
          class="input"
          required
          disabled={of !== null}
          autocomplete="off"
          spellcheck={false}
          value={id}
          onInput={(event) => {
            const text = event.currentTarget.value
            // What is typed is a line only when it is complete; what is pasted is at once.
            const line = text.length - id.length > 1 ? fromLine(text) : null
            if (line) fill(line)
            else setId(text)
          }}
        />
      </Field>
      <Field label={c.type} required>
        <select class="select" value={other ? '' : type} onChange={(event) => choose(event.currentTarget.value)}>
          {Object.entries(PRESETS).map(([key, one]) => <option key={key} value={key}>{one.name}</option>)}
          <option value="">{c.other}</option>
        </select>
      </Field>
      {other && <Field label={c.otherType} required hint={c.otherHint}><input class="input" required autocomplete="off" spellcheck={false} value={type} onInput={(event) => setType(event.currentTarget.value)} /></Field>}
      {TEXTS.filter(isShown).map((field) => (
        <Field key={field} label={label(field)}>
          <input class="input" {...{ type: (field === 'port' ? 'number' : 'text') as 'text' }} autocomplete="off" spellcheck={false} placeholder={field === 'port' && preset?.port ? String(preset.port) : ''} value={texts[field]} onInput={(event) => setTexts({ ...texts, [field]: event.currentTarget.value })} />
        </Field>
      ))}
      {(preset?.password !== null || of?.password) && <Secret label={preset?.password ?? c.password} stored={Boolean(of?.password)} {...password} onValue={(text) => setPassword({ text, removed: false })} onRemove={(removed) => setPassword({ text: null, removed })} />}
      {fields ? (
        <>
          {fields.map((one, at) => (one.stored === undefined && !(one.key in (preset?.extra ?? {})) ? (
            <div key={at} class="row">
              <input class="input" style={{ width: '40%' }} aria-label={c.fieldName} placeholder={c.fieldName} spellcheck={false} value={one.key} onInput={(event) => changeField(at, { key: event.currentTarget.value })} />
              <input class="input grow" aria-label={c.fieldValue} placeholder={c.fieldValue} spellcheck={false} value={one.text ?? ''} onInput={(event) => changeField(at, { text: event.currentTarget.value })} />
              <Button kind="plain" icon="trash" label={`${t.remove}: ${one.key}`} onClick={() => setFields(fields.filter((_, index) => index !== at))} />
            </div>
          ) : (
            <Secret key={at} label={one.key} stored={one.stored !== undefined} text={one.text} removed={one.removed} open placeholder={preset?.extra?.[one.key] ?? ''} onValue={(text) => changeField(at, { text, removed: false })} onRemove={(removed) => changeField(at, { removed, text: null })} />
          )))}
          <span><Button icon="plus" onClick={() => setFields([...fields, { key: '', text: '', removed: false }])}>{c.addField}</Button> <span class="hint small dim">{c.fieldHint}</span></span>
        </>
      ) : (
        <Secret label={c.extra} stored text={whole} open long onValue={setWhole} />
      )}
      <Field label={c.description}><input class="input" value={texts['description']} onInput={(event) => setTexts({ ...texts, description: event.currentTarget.value })} /></Field>
      {of && <TestConnection id={of.connection_id} changed={mask.length > 0} />}
    </Dialog>
  )
}

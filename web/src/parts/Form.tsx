/** A dialog with fields that saves one thing, and shows why it could not. */
import { useState } from 'preact/hooks'
import { message } from '../api/client'
import { t } from '../strings'
import { Button, Check, Field } from './basic'
import { Dialog } from './overlay'
import { Secret } from './Secret'

export interface Input {
  name: string
  label: string
  kind?: 'text' | 'number' | 'area' | 'check' | 'secret'
  hint?: string
  required?: boolean
  /** Shown but not changed: what names the thing. */
  fixed?: boolean
  /** Characters of the longest text. */
  most?: number
}
/** What is missing is a secret that stays as it is stored. */
export type Values = Record<string, string>

export function Form({ title, inputs, values, save, onClose }: { title: string; inputs: Input[]; values: Values; save: (values: Values) => Promise<unknown>; onClose: () => void }) {
  const [now, setNow] = useState<Values>(values)
  const [wrong, setWrong] = useState<string | null>(null)
  const [busy, setBusy] = useState(false)
  const submit = async () => {
    setBusy(true)
    try {
      await save(now)
      onClose()
    } catch (error) {
      setWrong(message(error))
      setBusy(false)
    }
  }
  const set = (name: string, value: string | null) =>
    setNow((old) => {
      const { [name]: _, ...others } = old
      return value === null ? others : { ...others, [name]: value }
    })
  return (
    <Dialog
      title={title}
      wrong={wrong}
      onClose={onClose}
      onSubmit={() => void submit()}
      footer={
        <>
          <Button onClick={onClose}>{t.cancel}</Button>
          <Button kind="first" type="submit" disabled={busy}>{t.save}</Button>
        </>
      }
    >
      {inputs.map((input) =>
        input.kind === 'check' ? (
          <Check key={input.name} on={now[input.name] === 'true'} onChange={(on) => set(input.name, String(on))}>{input.label}</Check>
        ) : input.kind === 'secret' ? (
          <Secret key={input.name} label={input.label} stored long text={now[input.name] ?? null} onValue={(text) => set(input.name, text)} />
        ) : (
          <Field key={input.name} label={input.label} required={input.required ?? false} {...(input.hint ? { hint: input.hint } : {})}>
            {input.kind === 'area' ? (
              <textarea class="area" rows={5} spellcheck={false} value={now[input.name] ?? ''} onInput={(event) => set(input.name, event.currentTarget.value)} />
            ) : (
              <input
                class="input"
                {...{ type: (input.kind ?? 'text') as 'text' }}
                required={input.required ?? false}
                maxLength={input.most}
                disabled={input.fixed ?? false}
                autocomplete="off"
                value={now[input.name] ?? ''}
                onInput={(event) => set(input.name, event.currentTarget.value)}
              />
            )}
          </Field>
        ),
      )}
    </Dialog>
  )
}

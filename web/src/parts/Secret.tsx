/** A value that pages never receive: kept as it is stored, replaced, or removed. */
import { Button } from './basic'
import { t } from '../strings'

interface Props {
  label: string
  /** Whether a value is stored. */
  stored: boolean
  /** The new value; null keeps what is stored. */
  text: string | null
  removed?: boolean
  hint?: string
  placeholder?: string
  /** Typed text is shown. */
  open?: boolean
  long?: boolean
  onValue: (text: string | null) => void
  onRemove?: ((removed: boolean) => void) | undefined
}

export function Secret({ label, stored, text, removed = false, hint, placeholder, open = false, long = false, onValue, onRemove }: Props) {
  const keeps = stored && (text === null || removed)
  return (
    <div class="field" role="group" aria-label={label}>
      <span>{label}</span>
      {keeps ? (
        <span class="row secret">
          <span class="grow soft">{removed ? t.secret.removed : t.secret.stored}</span>
          {removed ? (
            <Button onClick={() => onRemove?.(false)}>{t.secret.keep}</Button>
          ) : (
            <>
              <Button icon="edit" onClick={() => onValue('')}>{t.secret.replace}</Button>
              {onRemove && <Button kind="plain" icon="trash" label={`${t.remove}: ${label}`} onClick={() => onRemove(true)} />}
            </>
          )}
        </span>
      ) : (
        <span class="row">
          {long ? (
            <textarea class="area grow" rows={5} spellcheck={false} aria-label={label} value={text ?? ''} onInput={(event) => onValue(event.currentTarget.value)} />
          ) : (
            <input class="input grow" {...{ type: (open ? 'text' : 'password') as 'text' }} autocomplete="new-password" spellcheck={false} aria-label={label} placeholder={placeholder} value={text ?? ''} onInput={(event) => onValue(event.currentTarget.value)} />
          )}
          {stored && <Button onClick={() => onValue(null)}>{t.secret.keep}</Button>}
        </span>
      )}
      {hint && <span class="hint">{hint}</span>}
    </div>
  )
}

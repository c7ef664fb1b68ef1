/** A dialog that chooses the zone of all times. */
import { signal } from '@preact/signals'
import { useState } from 'preact/hooks'
import { isZone, setZone, zone } from '../format'
import { Dialog } from '../parts/overlay'
import { t } from '../strings'

export const zoning = signal(false)
const MOST = 60

export function ZonePicker() {
  return zoning.value ? <Open /> : null
}

function Open() {
  const [text, setText] = useState('')
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone
  const all: [string, string][] = [['local', `${t.zone.local}: ${own}`], ['utc', 'UTC'], ...Intl.supportedValuesOf('timeZone').map((name): [string, string] => [name, name])]
  const wanted = text.trim().toLowerCase().replaceAll(' ', '_')
  const shown = all.filter(([, name]) => name.toLowerCase().includes(wanted)).slice(0, MOST)
  const choose = (name: string | undefined) => {
    if (name) setZone(name)
    zoning.value = false
  }
  return (
    <Dialog title={t.zone.pick} onClose={() => (zoning.value = false)} onSubmit={() => choose(shown[0]?.[0] ?? (isZone(text.trim()) ? text.trim() : undefined))}>
      <input class="input" aria-label={t.zone.search} placeholder={t.zone.search} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      <ul style={{ height: '320px', overflowY: 'auto' }}>
        {shown.map(([name, shownName]) => <li key={name}><button type="button" class="side-link" aria-current={zone.value === name ? 'true' : undefined} onClick={() => choose(name)}>{shownName}</button></li>)}
      </ul>
    </Dialog>
  )
}

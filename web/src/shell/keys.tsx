/** Keys of every page, and the list of them. */
import { signal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { plainKey } from '../parts/List'
import { Dialog } from '../parts/overlay'
import { t } from '../strings'
import { go } from './router'
import { jumping } from './Jump'
import { isDark, theme } from './theme'

export const helping = signal(false)
const PLACES: Record<string, string> = { h: '/', d: '/dags', r: '/runs', t: '/tasks', w: '/actions', a: '/assets', b: '/backfills', q: '/queues', p: '/pools', i: '/imports', u: '/bundles', v: '/variables', c: '/connections', l: '/audit', s: '/settings' }
let leader = 0

export function useKeys(): void {
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key === 'k') {
        event.preventDefault()
        jumping.value = true
        return
      }
      if (!plainKey(event)) return
      const place = PLACES[event.key]
      if (leader && performance.now() - leader < 1200 && place) {
        leader = 0
        event.preventDefault()
        event.stopImmediatePropagation()
        go(place)
      } else if (event.key === 'g') leader = performance.now()
      else if (event.key === '?') helping.value = true
      else if (event.key === '/') {
        event.preventDefault()
        document.querySelector<HTMLInputElement>('[data-filter]')?.focus()
      } else if (event.key === 'T') theme.value = isDark() ? 'light' : 'dark'
    }
    // Before the keys of a page, so that "g d" is not also a "d".
    document.addEventListener('keydown', press, true)
    return () => document.removeEventListener('keydown', press, true)
  }, [])
}

export function KeysHelp() {
  if (!helping.value) return null
  const k = t.keys
  const n = t.nav
  const names: Record<string, string> = { ...n, home: t.home }
  const rows: [string[], string][] = [
    [['Ctrl', 'K'], k.jump], [['/'], k.search], [['j'], k.next], [['k'], k.before], [['Enter'], k.open], [['x'], k.select], [['T'], k.theme], [['?'], k.help], [['Esc'], k.close],
    ...Object.entries(PLACES).map(([key, path]): [string[], string] => [['g', key], `${k.go}: ${names[path.slice(1) || 'home']}`]),
    [['←', '↑', '↓', '→'], k.grid], [['←', '→'], k.panel], [['Esc'], k.panelClose], [['n'], k.logNext], [['N'], k.logBefore], [['e'], k.logError], [['w'], k.logWrap], [['Home'], k.logStart], [['End'], k.logEnd],
  ]
  return (
    <Dialog title={k.title} onClose={() => (helping.value = false)}>
      <dl class="facts" tabIndex={0} aria-label={k.title}>
        {rows.map(([keys, text], at) => (
          <>
            <dt key={`k${at}`}>{keys.map((one) => <><kbd key={one}>{one}</kbd> </>)}</dt>
            <dd key={`d${at}`}>{text}</dd>
          </>
        ))}
      </dl>
    </Dialog>
  )
}

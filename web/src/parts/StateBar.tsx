/** One bar for many instances, as long as each state has parts of them, with their numbers below. */
import { count } from '../format'
import { color, known, label, STATES } from '../states'
import { Mark } from './State'

export function StateBar({ label: name, states, link }: { label: string; states: Record<string, number>; link: (state: string) => string }) {
  const parts = STATES.flatMap((state) => {
    const number = Object.entries(states).reduce((sum, [one, of]) => sum + (known(one) === state ? of : 0), 0)
    return number ? [[state, number] as const] : []
  })
  return (
    <div class="stack" style={{ gap: '6px' }}>
      <div class="state-bar" role="img" aria-label={`${name}: ${parts.map(([state, number]) => `${count(number)} ${label(state)}`).join(', ')}`}>
        {parts.map(([state, number]) => <i key={state} style={{ flexGrow: number, background: color(state) }} />)}
      </div>
      <div class="row wrap small" style={{ gap: '4px 14px' }}>
        <strong>{name}</strong>
        {parts.map(([state, number]) => <a key={state} class="state" href={link(state)}><Mark state={state} size={12} />{count(number)} {label(state)}</a>)}
      </div>
    </div>
  )
}

/** A number that leads to the list of what it counts. */
import { count } from '../format'

export function CountLink({ value, link, label, strong = false }: { value: number; link: string; label: string; strong?: boolean }) {
  if (!value) return <span class="dim">0</span>
  return <a class="num" href={link} aria-label={label}>{strong ? <strong>{count(value)}</strong> : count(value)}</a>
}

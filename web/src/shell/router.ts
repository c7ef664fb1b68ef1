/** The address bar as signals: path below the base, query, and links that change them without a reload. */
import { computed, signal } from '@preact/signals'
import { base } from '../api/client'

const address = signal(read())

function read(): { path: string; query: string } {
  const path = location.pathname.startsWith(base) ? location.pathname.slice(base.length) : location.pathname
  return { path: path || '/', query: location.search }
}

export const path = computed(() => address.value.path)
export const query = computed(() => new URLSearchParams(address.value.query))

window.addEventListener('popstate', () => (address.value = read()))

/** Whether the page may be left; a page with unsaved input sets it. */
export function go(to: string, options: { replace?: boolean; keepScroll?: boolean } = {}): void {
  const url = base + to
  if (options.replace) history.replaceState(null, '', url)
  else history.pushState(null, '', url)
  const before = address.value.path
  address.value = read()
  if (!options.keepScroll && before !== address.value.path) scrollTo(0, 0)
}

/** Change parts of the query and keep the others; null removes one. */
export function setQuery(changes: Record<string, string | string[] | null | undefined>, replace = true): void {
  const next = new URLSearchParams(address.value.query)
  for (const [name, value] of Object.entries(changes)) {
    next.delete(name)
    if (Array.isArray(value)) value.forEach((one) => next.append(name, one))
    else if (value !== null && value !== undefined && value !== '') next.set(name, value)
  }
  const text = next.toString()
  go(address.value.path + (text ? `?${text}` : ''), { replace, keepScroll: true })
}

/** A link's click: with a modifier key or another button the browser does its own. */
export function follow(event: MouseEvent): void {
  const link = (event.target as Element).closest?.('a')
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return
  if (link.target || link.origin !== location.origin || link.hasAttribute('download')) return
  if (!link.pathname.startsWith(`${base}/`) || /^\/(api|auth|metrics|health|flower)(\/|$)/.test(link.pathname.slice(base.length))) return
  event.preventDefault()
  go(link.pathname.slice(base.length) + link.search)
}

/** A path of encoded parts. */
export function to(...parts: (string | number)[]): string {
  return parts.map((part) => `/${encodeURIComponent(part)}`).join('')
}
export const href = (path: string) => base + path

/** The account of this browser, and what it may do. */
import { signal } from '@preact/signals'
import { loggedIn, request } from '../api/client'
import type { Account } from '../api/types'
import { t } from '../strings'

export const account = signal<Account | null>(null)
const ORDER = ['viewer', 'operator', 'admin'] as const
export type Role = (typeof ORDER)[number]

export async function load(): Promise<void> {
  account.value = await request<Account>('/api/v2/me')
  loggedIn.value = true
}

export async function logIn(username: string, password: string): Promise<void> {
  await request('/auth/login', { method: 'POST', body: JSON.stringify({ username, password }) })
  await load()
}

export async function logOut(): Promise<void> {
  await request('/auth/logout', { method: 'POST' })
  location.reload()
}

/** Whether the account has a role for everything, or on a DAG with one of these tags. */
export function may(role: Role, tags: readonly string[] = []): boolean {
  const own = account.value
  if (!own) return false
  const enough = (given: string | null | undefined) => given != null && ORDER.indexOf(given as Role) >= ORDER.indexOf(role)
  return enough(own.role) || tags.some((tag) => enough(own.tags[tag]))
}
/** Whether the account may change a DAG and its runs, where its tags are not known. */
export function mayChange(dagId: string): boolean {
  return may('operator') || (account.value?.operates ?? []).includes(dagId)
}
/** Whether the account has the role on at least one DAG. */
export function mayAnywhere(role: Role): boolean {
  return may(role, Object.keys(account.value?.tags ?? {}))
}

/** Whether the account may open a page of the navigation. */
export function mayVisit(place: { role?: Role; whole?: boolean }): boolean {
  return place.whole ? may(place.role ?? 'viewer') : !place.role || mayAnywhere(place.role)
}

/** The rights of the account as a sentence. */
export function rights(): string {
  const own = account.value
  if (!own) return ''
  const tags = Object.entries(own.tags).map(([tag, role]) => t.rights.onTag(role, tag))
  return t.rights.own([...(own.role ? [own.role] : []), ...tags])
}

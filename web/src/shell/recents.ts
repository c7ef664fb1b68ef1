/** The DAGs, runs, tasks and assets that this browser showed last. */

export interface Recent {
  path: string
  text: string
}
const KEY = 'paceline.recent'
const MOST = 8

export function recents(): Recent[] {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(KEY) ?? '[]')
    return Array.isArray(found) ? found.filter((one: Partial<Recent>): one is Recent => typeof one?.path === 'string' && typeof one.text === 'string').slice(0, MOST) : []
  } catch {
    return []
  }
}

/** Remember a page if it is about one thing, without its tab. */
export function remember(path: string): void {
  const one = subject(path)
  if (one) localStorage.setItem(KEY, JSON.stringify([one, ...recents().filter((other) => other.path !== one.path)].slice(0, MOST)))
}

export function subject(path: string): Recent | null {
  const [kind, id, runs, run, tasks, task] = path.split('/').filter(Boolean)
  if (kind !== 'dags' || !id) return null
  const end = runs !== 'runs' || !run ? 2 : tasks === 'tasks' && task ? 6 : 4
  const parts = path.split('/').filter(Boolean).slice(0, end)
  try {
    return { path: `/${parts.join('/')}`, text: [id, ...(end > 2 ? [run!] : []), ...(end > 4 ? [task!] : [])].map(decodeURIComponent).join(' / ') }
  } catch {
    return null
  }
}

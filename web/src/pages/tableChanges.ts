/** What versions of a table changed in its columns. Pure. */
import type { components } from '../api/schema'

type Version = components['schemas']['TableVersion']
export interface SchemaChange {
  publication: number | null
  at: string | null
  version: Version
  /** Columns with their types, such as "price double". */
  added: string[]
  removed: string[]
}

/** The newest first; the columns of the oldest known version are no change. */
export function changes(versions: readonly Version[]): SchemaChange[] {
  const known = versions.filter((one) => one.columns)
  const texts = (of: Version) => Object.entries(of.columns ?? {}).map(([name, type]) => `${name} ${type}`)
  return known.slice(0, -1).flatMap((version, at) => {
    const [now, before] = [texts(version), texts(known[at + 1]!)]
    const added = now.filter((one) => !before.includes(one))
    const removed = before.filter((one) => !now.includes(one))
    return added.length + removed.length ? [{ publication: version.publication, at: version.published_at, version, added, removed }] : []
  })
}

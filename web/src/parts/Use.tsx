/** How full a pool is, by the states of what holds its slots. */
import type { Pool } from '../api/types'
import { t } from '../strings'

export function Use({ pool }: { pool: Pool }) {
  if (pool.slots < 0) return <span class="dim small">{t.pools.unlimited}</span>
  const part = (slots: number) => `${Math.min(100, (slots / Math.max(1, pool.slots)) * 100)}%`
  return (
    <span class="use" role="img" aria-label={`${pool.occupied_slots} / ${pool.slots}`} title={`${pool.occupied_slots} / ${pool.slots}`}>
      <i style={{ width: part(pool.running_slots), background: 'var(--s-running)' }} />
      <i style={{ width: part(pool.queued_slots), background: 'var(--s-queued)' }} />
      {pool.include_deferred && <i style={{ width: part(pool.deferred_slots), background: 'var(--s-deferred)' }} />}
    </span>
  )
}

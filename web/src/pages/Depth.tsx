/** How much waited and ran over time, in all queues. */
import { api, ok } from '../api/client'
import { Chart } from '../charts/Chart'
import { count } from '../format'
import { useLive } from '../live/resource'
import { Note, Skeleton } from '../parts/basic'
import { t } from '../strings'

export default function Depth({ hours }: { hours: number }) {
  const live = useLive(`depth ${hours}`, () => ok(api.GET('/api/v2/queues/history', { params: { query: { hours } } })), { every: 30_000 })
  if (live.error.value) return <Note kind="bad">{live.error.value}</Note>
  const sums = new Map<number, [number, number, number]>()
  for (const one of live.data.value?.depths ?? []) {
    const at = Date.parse(one.at) / 1000
    const sum = sums.get(at) ?? [0, 0, 0]
    sums.set(at, [sum[0] + one.scheduled, sum[1] + one.queued, sum[2] + one.running])
  }
  const times = [...sums.keys()].sort((a, b) => a - b)
  const line = (at: 0 | 1 | 2) => times.map((time) => sums.get(time)![at])
  if (!live.data.value) return <Skeleton rows={4} height={46} />
  if (times.length < 2) return <p class="soft" style={{ minHeight: '210px' }}>{t.queues.noDepth}</p>
  return (
    <Chart
      label={t.queues.depth}
      height={180}
      times={times}
      format={(value) => count(Math.round(value))}
      lines={[
        { label: t.queues.waiting, color: '--s-scheduled', values: line(0), kind: 'step', fill: true },
        { label: t.pools.queued, color: '--s-up_for_retry', values: line(1), kind: 'step', dash: [4, 3] },
        { label: t.queues.running, color: '--s-running', values: line(2), kind: 'step', fill: true },
      ]}
    />
  )
}

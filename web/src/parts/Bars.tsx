/** Runs as bars: height for the duration, color for the state; a failed run has a gap, a running one an open top. */
import type { RecentRun } from '../api/types'
import { duration, elapsed, moment } from '../format'
import { href, to } from '../shell/router'
import { color, label } from '../states'
import { t } from '../strings'

const W = 7
const GAP = 3
const H = 24

export function Bars({ dagId, runs, slots = 14 }: { dagId: string; runs: readonly RecentRun[] | undefined; slots?: number }) {
  const width = slots * (W + GAP)
  if (!runs?.length) return <div style={{ width: `${width}px`, height: `${H}px` }} class="row dim small">{runs && t.dags.noRuns}</div>
  const longest = Math.max(0.001, ...runs.map((run) => elapsed(run.start_date, run.end_date) ?? 0))
  const first = slots - runs.length
  return (
    <svg width={width} height={H} viewBox={`0 0 ${width} ${H}`} style={{ display: 'block' }} role="group" aria-label={t.dags.recent}>
      {runs.map((run, at) => {
        const seconds = elapsed(run.start_date, run.end_date) ?? 0
        const height = Math.round(6 + (H - 7) * (seconds / longest))
        const x = (first + at) * (W + GAP)
        const fill = color(run.state)
        const text = t.dags.runOf(run.dag_run_id, label(run.state), moment(run.start_date ?? run.run_after), duration(seconds))
        return (
          <a key={run.dag_run_id} href={href(to('dags', dagId, 'runs', run.dag_run_id))} aria-label={text}>
            <title>{text}</title>
            <rect x={x - GAP / 2} y={0} width={W + GAP} height={H} fill="transparent" />
            {run.state === 'running' ? (
              <>
                <rect x={x + 0.75} y={H - height + 0.75} width={W - 1.5} height={height - 1.5} rx={1.5} fill="none" stroke={fill} stroke-width={1.5} />
                <rect x={x + 0.75} y={H - height / 2} width={W - 1.5} height={height / 2 - 0.75} fill={fill} />
              </>
            ) : run.state === 'queued' ? (
              <rect x={x + 0.75} y={H - 6.25} width={W - 1.5} height={5.5} rx={1.5} fill="none" stroke={fill} stroke-width={1.5} />
            ) : run.state === 'failed' ? (
              <>
                <rect x={x} y={H - height - 1} width={W} height={Math.max(2, height - 4)} rx={1.5} fill={fill} />
                <rect x={x} y={H - 3} width={W} height={3} rx={1} fill={fill} />
              </>
            ) : (
              <rect x={x} y={H - height} width={W} height={height} rx={1.5} fill={fill} />
            )}
          </a>
        )
      })}
    </svg>
  )
}

/** Why a run failed: its first failed task, the message, the end of its log, and what can be done. */
import type { Timeline } from '../../api/pictures'
import { Line } from '../../log/Line'
import { Button, Time } from '../../parts/basic'
import { Mark } from '../../parts/State'
import { href, to } from '../../shell/router'
import { t } from '../../strings'

export function Failure({ dagId, runId, failure, onClear }: { dagId: string; runId: string; failure: NonNullable<Timeline['failure']>; onClear: (() => void) | null }) {
  const link = href(to('dags', dagId, 'runs', runId, 'tasks', failure.task_id, ...(failure.map_index >= 0 ? [failure.map_index, 'log'] : ['-', 'log'])))
  const lines = (failure.log?.lines ?? []).filter((line, at, all) => line.trim() || all.slice(at).some((one) => one.trim()))
  return (
    <section class="card failure" aria-label={t.run.failure}>
      <header>
        <Mark state="failed" />
        <h2><a href={link}>{failure.task_id}{failure.map_index >= 0 ? ` [${failure.map_index}]` : ''}</a> <span class="soft">{t.run.failedFirst}</span></h2>
        <span class="small dim"><Time at={failure.end_date} /></span>
        {failure.failed > 1 && <a class="tag bad" href={href(to('dags', dagId, 'runs', runId, 'tasks') + '?state=failed')}>{t.run.failedAll(failure.failed)}</a>}
        <span class="end row">
          <a class="button" href={link}>{t.run.openLog}</a>
          {onClear && <Button kind="first" icon="clear" onClick={onClear}>{t.run.clearFailed}</Button>}
        </span>
      </header>
      {failure.reason && <p class="pad wrong failure-reason">{failure.reason}</p>}
      {lines.length > 0 && <pre class="failure-log" tabIndex={0} aria-label={t.task.log}>{lines.map((line, at) => <span key={at}><Line text={line} search="" />{'\n'}</span>)}</pre>}
    </section>
  )
}

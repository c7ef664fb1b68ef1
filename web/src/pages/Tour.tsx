/** Three cards for the first minute: run a DAG, find out why, bring your own. */
import { useState } from 'preact/hooks'
import { api, ok } from '../api/client'
import type { Dag } from '../api/types'
import { useLive } from '../live/resource'
import { Button, Copy } from '../parts/basic'
import { Trigger } from '../parts/Trigger'
import { go, href, to } from '../shell/router'
import { may } from '../shell/session'
import { t } from '../strings'

const u = t.tour
const EXAMPLE = `from paceline import DAG, task

with DAG("hello", schedule=None):

    @task
    def greet():
        print("Hello")

    greet()
`

/** An example that ends within seconds comes first, and what waits because it is paused comes last. */
function rank(dag: Dag): number {
  const tags = dag.tags.map((tag) => tag.name)
  return tags.includes('example') && !tags.includes('spark') ? 0 : dag.is_paused ? 2 : 1
}

export default function Tour({ onClose }: { onClose: () => void }) {
  const [at, show] = useState(0)
  const [triggered, trigger] = useState<string | null>(null)
  const dags = useLive('tour', () => ok(api.GET('/api/v2/dags', { params: { query: { limit: 100, order_by: ['dag_id'] } } })))
  const first = [...(dags.data.value?.dags ?? [])].sort((a, b) => rank(a) - rank(b))[0]
  const last = at === u.cards.length - 1
  return (
    <section class="card tour" aria-label={u.title}>
      <header>
        <h2 class="grow">{u.cards[at]!.title}</h2>
        <span class="small dim num">{at + 1} / {u.cards.length}</span>
        <Button kind="plain" onClick={onClose}>{u.skip}</Button>
      </header>
      <div class="pad stack" style={{ gap: '10px' }}>
        <p class="soft" style={{ maxWidth: '72ch' }}>{u.cards[at]!.text}</p>
        {at === 2 && <div class="row" style={{ alignItems: 'flex-start' }}><pre class="code grow" tabIndex={0}>{EXAMPLE}</pre><Copy text={EXAMPLE} /></div>}
        <div class="row wrap">
          {at === 0 && first && may('operator', first.tags.map((tag) => tag.name)) && <Button kind="first" icon="play" onClick={() => trigger(first.dag_id)}>{u.trigger(first.dag_id)}</Button>}
          {at === 0 && <a class="button" href={href('/dags')}>{u.dags}</a>}
          {at === 1 && <a class="button first" href={href('/runs')}>{u.runs}</a>}
          <span class="grow" />
          {at > 0 && <Button icon="left" onClick={() => show(at - 1)}>{u.back}</Button>}
          <Button kind={last ? 'first' : ''} onClick={() => (last ? onClose() : show(at + 1))}>{last ? u.done : u.next}</Button>
        </div>
      </div>
      {triggered && <Trigger dagId={triggered} onClose={() => trigger(null)} onDone={(runId) => go(to('dags', triggered, 'runs', runId))} />}
    </section>
  )
}

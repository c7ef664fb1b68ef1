/** What the authors wrote in doc_md: of the DAG, and of each of its tasks. */
import { api, ok } from '../../api/client'
import { useLive } from '../../live/resource'
import { Empty, Note, Skeleton } from '../../parts/basic'
import { Example } from '../../parts/NextStep'
import Markdown from '../../parts/Markdown'
import { t } from '../../strings'

const example = (dagId: string) => `with DAG(${JSON.stringify(dagId)}, doc_md="""
# What it does, and whom to call
"""):`

export default function Docs({ dagId, text }: { dagId: string; text: string | null }) {
  const live = useLive(`tasks ${dagId}`, () => ok(api.GET('/api/v2/dags/{dag_id}/tasks', { params: { path: { dag_id: dagId } } })), { every: 0 })
  const tasks = live.data.value?.tasks.filter((task) => task.doc_md?.trim())
  if (!tasks) return live.error.value ? <Note kind="bad">{live.error.value}</Note> : <Skeleton />
  if (!text?.trim() && !tasks.length) return <Empty title={t.dag.docsNone}><p>{t.dag.docsNoneText}</p><Example text={example(dagId)} /></Empty>
  return (
    <div class="stack docs">
      {text?.trim() && <section class="card pad"><Markdown text={text} /></section>}
      {tasks.map((task) => (
        <section key={task.task_id} class="card">
          <header><h2>{task.task_id}</h2></header>
          <div class="pad"><Markdown text={task.doc_md!} /></div>
        </section>
      ))}
    </div>
  )
}

/** DAG files that cannot be read, with their tracebacks. */
import { api, ok } from '../api/client'
import { relative } from '../format'
import { useLive } from '../live/resource'
import { Copy, Empty, Note, Skeleton } from '../parts/basic'
import { Head } from '../parts/Head'
import { Icon } from '../parts/icons'
import { t } from '../strings'

export default function Imports() {
  const live = useLive('imports', () => ok(api.GET('/api/v2/importErrors', { params: { query: { limit: 200, order_by: ['-timestamp'] } } })), { on: ['runs'] })
  const page = live.data.value
  return (
    <>
      <Head title={t.imports.title} />
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      {!page ? <Skeleton /> : page.import_errors.length === 0 ? (
        <div class="card"><Empty title={t.imports.none}><p>{t.imports.noneText}</p></Empty></div>
      ) : (
        <div class="stack">
          {page.import_errors.map((one) => (
            <section key={one.import_error_id} class="card">
              <header>
                <Icon name="imports" />
                <h2 class="mono grow">{one.filename}</h2>
                <span class="small dim">{t.imports.seen(relative(one.timestamp))}</span>
                <Copy text={one.stack_trace} />
              </header>
              <pre class="code wrap" style={{ margin: '8px', maxHeight: '420px' }} tabIndex={0}>{one.stack_trace}</pre>
            </section>
          ))}
        </div>
      )}
    </>
  )
}
